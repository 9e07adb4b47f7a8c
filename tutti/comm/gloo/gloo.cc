#include "tutti/comm/gloo/gloo.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <list>
#include <mutex>
#include <stdexcept>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/table_store.h"

// LibTorch has been built with it, but does not say so to others.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Pending = c10::intrusive_ptr<c10d::Work>;

// What is sent for different reasons never meets.
enum Reason { kExchange, kMessage, kLifeline };

// Nor does what does not fit, of which Gloo would say nothing: the tag has in it how many went before for the
// same reason, and the size. So it is a Timeout.
int tag_of(Reason reason, uint64_t number, uint64_t size) {
  constexpr int kBits = 29;
  const uint64_t mixed = ((number + 1) * 0x9e3779b97f4a7c15 ^ size) * 0xbf58476d1ce4e5b9;
  return static_cast<int>(reason) << kBits | static_cast<int>(mixed >> (64 - kBits));
}

// Of one reason; by peer.
struct Counts {
  explicit Counts(int world) : sent(static_cast<size_t>(world)), received(sent) {}
  std::vector<uint64_t> sent;
  std::vector<uint64_t> received;
};

constexpr const char* kLoopback = "127.0.0.1";

// The board keeps the deadlines. Gloo's own comes later, for the case that the board cannot.
constexpr milliseconds kGlooIsLater{60000};

// While it lives, writing to a connection that the other side has closed is an error in this thread (and in
// threads that it starts) and does not end the process: Gloo does not see to that itself.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
};

// This machine's own address on the way to another: connecting a datagram socket sends nothing and only asks
// the kernel for the route. "" where there is none.
std::string address_on_route(const SocketAddress& to) {
  const FileDescriptor socket(::socket(to.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  const bool found = socket.get() >= 0 && ::connect(socket.get(), to.get(), to.size) == 0 &&
                     ::getsockname(socket.get(), own.get(), &own.size) == 0;
  return found ? numeric(own) : "";
}

std::string address_towards(const std::string& host) {
  if (host.empty()) return kLoopback;
  // A port there has to be; which one does not matter.
  const Resolved found = resolve(host, 9);
  if (found.addresses.empty())
    fail(ErrorKind::InvalidArgument, "host '{}' is not known here: {}. Check the name", host, found.trouble);
  for (const SocketAddress& to : found.addresses) {
    std::string address = address_on_route(to);
    if (!address.empty()) return address;
  }
  fail(ErrorKind::InvalidArgument, "no network of this machine leads to host '{}'", host);
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// Who uses the loopback while another does not cannot be reached by that one.
std::string reachable_address(const std::string& mine, const std::vector<std::string>& of_all) {
  if (!is_loopback(mine)) return mine;
  const auto elsewhere = std::find_if_not(of_all.begin(), of_all.end(), is_loopback);
  return elsewhere == of_all.end() ? mine : address_towards(*elsewhere);
}

at::Tensor view(ConstBytes bytes) {
  // Gloo knows no const; what it sends it only reads.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

// What Gloo says, without its own file and line; nothing where that is the usual end of a connection.
std::string reason(const std::exception& error) {
  const std::string text = first_line(error.what());
  for (const char* usual : {"closed by peer", "reset by peer", "Broken pipe", "Socket closed"}) {
    if (text.find(usual) != std::string::npos) return "";
  }
  const size_t place = text.find("] ");
  return text.starts_with('[') && place != std::string::npos ? text.substr(place + 2) : text;
}

class GlooTransport final : public Transport, public OwnAllReduce, public OnBoard {
 public:
  GlooTransport(std::shared_ptr<Rendezvous> table, GlooOptions options)
      : table_(std::move(table)), options_(std::move(options)), counts_(3, Counts(options_.world)) {
    if (options_.world == 1) return;
    const NoSigpipe no_sigpipe;
    connect();
    board_ =
        std::make_unique<FailureBoard>(with_prefix(table_, "board/"), board_options(), [this] { hang_up(); });
  }

  std::string name() const override { return "gloo"; }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }

  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  bool adds(torch::ScalarType type) const override {
    return type == torch::kFloat || type == torch::kDouble || type == torch::kInt || type == torch::kLong;
  }
  void add_all(const torch::Tensor& flat, const Operation& operation) override;
  void abandon(const std::string& text) override { board_->give_up(text); }
  FailureBoard& board() override { return *board_; }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  using Party = FailureBoard::Party;

  BoardOptions board_options() const {
    return {.rank = options_.rank, .world = options_.world, .who = options_.who};
  }
  std::vector<int> peers() const;
  void connect();
  void hang_up();
  Pending post_send(ConstBytes bytes, int to, Reason reason);
  Pending post_recv(Bytes bytes, int from, Reason reason);
  void await(const Pending& pending, milliseconds patience);
  template <class Body>
  void attempt(const Operation& operation, Party party, const std::vector<int>& peers, const Body& body);

  const std::shared_ptr<Rendezvous> table_;  // shared with its other parts
  const GlooOptions options_;
  std::byte lifeline_byte_{};
  std::mutex posting_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;  // guarded by posting_, after construction
  std::vector<Counts> counts_;                        // likewise; by reason
  std::vector<Pending> lifelines_;                    // one for each peer: receive what never comes
  std::mutex waiting_;
  std::list<Pending> awaited_;           // guarded by waiting_; what has failed stays
  bool hung_up_ = false;                 // guarded by waiting_
  std::unique_ptr<FailureBoard> board_;  // last, so that it ends first
};

std::vector<int> GlooTransport::peers() const {
  std::vector<int> peers;
  for (int r = 0; r < options_.world; ++r) {
    if (r != options_.rank) peers.push_back(r);
  }
  return peers;
}

void GlooTransport::connect() {
  const auto deadline = Clock::now() + options_.timeout;
  const std::string mine = address_towards(options_.peer_host);
  const auto addresses = roll_call(*table_, board_options(), mine, options_.timeout);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->threads = 1;  // for Gloo's own all-reduce
  // Everybody is here, so that this is soon over, unless somebody ends just now. Gloo takes five times as
  // long.
  options->timeout = std::max(until(deadline) / 5, milliseconds(1000));
  try {
    options->devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname(reachable_address(mine, addresses)));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<TableStore>(with_prefix(table_, "gloo/"), deadline), options_.rank,
        options_.world, options);
    for (const int peer : peers()) lifelines_.push_back(post_recv({&lifeline_byte_, 1}, peer, kLifeline));
    // Who went on, or gave up, while others are still connecting would cut them off without a reason.
    roll_call(*with_prefix(table_, "connected/"), board_options(), "", options->timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::PeerLost,
         "connect failed: {}. All ranks were here, so one has ended since, or a firewall stands between",
         reason(error).empty() ? "a connection was closed" : reason(error));
  }
}

// Ends all connections, so that whoever waits gets an exception, and nothing is written to anybody's memory
// any more. c10d has no call for it; but Gloo does it when a wait runs into its timeout. After that nothing
// is stuck, and the group can be destroyed as usual.
void GlooTransport::hang_up() {
  const NoSigpipe no_sigpipe;
  for (const Pending& lifeline : lifelines_) {
    try {
      lifeline->wait(milliseconds(1));
    } catch (const std::exception&) {
      // That it times out is the point; or its peer has hung up before.
    }
  }
  // Gloo tells nobody who waits for a message of which a part has gone or come.
  const std::lock_guard lock(waiting_);
  hung_up_ = true;
  for (const Pending& pending : awaited_) pending->abort();
}

// Throws where it fails, or is given up.
void GlooTransport::await(const Pending& pending, milliseconds patience) {
  std::unique_lock lock(waiting_);
  if (hung_up_) throw std::runtime_error("closed by peer");
  const auto place = awaited_.insert(awaited_.end(), pending);
  lock.unlock();
  const bool done = pending->wait(patience);
  lock.lock();
  awaited_.erase(place);
  if (!done) throw std::runtime_error("closed by peer");
}

Pending GlooTransport::post_send(ConstBytes bytes, int to, Reason reason) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  uint64_t& number = counts_[reason].sent[static_cast<size_t>(to)];
  return group_->send(one, to, tag_of(reason, number++, bytes.size()));
}

Pending GlooTransport::post_recv(Bytes bytes, int from, Reason reason) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  uint64_t& number = counts_[reason].received[static_cast<size_t>(from)];
  return group_->recv(one, from, tag_of(reason, number++, bytes.size()));
}

// body(watch, peer) keeps in `peer` whom it is dealing with. All that it throws is that this one is gone.
template <class Body>
void GlooTransport::attempt(const Operation& operation, Party party, const std::vector<int>& peers,
                            const Body& body) {
  const NoSigpipe no_sigpipe;
  auto watch = board_->watch(operation, party, peers);
  int peer = peers.front();
  try {
    body(watch, peer);
  } catch (const std::exception& error) {
    board_->lost(watch, peer, reason(error));
  }
}

// Straight from and to the callers' memory: Gloo's all-to-all moves as fast, but wants all in one piece.
void GlooTransport::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                             const Operation& operation) {
  const auto at = [](const auto& all, int rank) { return all[static_cast<size_t>(rank)]; };
  std::vector<int> talking = peers();
  std::erase_if(talking, [&](int r) { return at(sends, r).empty() && at(recvs, r).empty(); });
  if (talking.empty()) return;
  attempt(operation, Party::All, talking, [&](FailureBoard::Watch& watch, int& peer) {
    std::vector<Pending> out(sends.size());
    std::vector<Pending> in(recvs.size());
    for (const int r : talking) {
      peer = r;
      if (!at(recvs, r).empty()) in[static_cast<size_t>(r)] = post_recv(at(recvs, r), r, kExchange);
      if (!at(sends, r).empty()) out[static_cast<size_t>(r)] = post_send(at(sends, r), r, kExchange);
    }
    for (const int r : talking) {
      peer = r;
      const auto patience = until(operation.deadline) + kGlooIsLater;
      if (const Pending& pending = at(in, r)) await(pending, patience);
      if (const Pending& pending = at(out, r)) await(pending, patience);
      watch.arrived(r);
    }
  });
}

// If a peer goes, its connection says so, as in an exchange.
void GlooTransport::add_all(const torch::Tensor& flat, const Operation& operation) {
  if (flat.numel() == 0) return;
  attempt(operation, Party::All, peers(), [&](FailureBoard::Watch& watch, int&) {
    std::vector<at::Tensor> one{flat};
    const auto post = [&] {
      const std::lock_guard lock(posting_);
      return group_->allreduce(one);
    };
    await(post(), until(operation.deadline) + kGlooIsLater);
    for (const int r : peers()) watch.arrived(r);
  });
}

void GlooTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  if (bytes.empty()) return;
  attempt(operation, Party::Two, {to}, [&](FailureBoard::Watch&, int) {
    await(post_send(bytes, to, kMessage), until(operation.deadline) + kGlooIsLater);
  });
}

void GlooTransport::recv(Bytes bytes, int from, const Operation& operation) {
  if (bytes.empty()) return;
  attempt(operation, Party::Two, {from}, [&](FailureBoard::Watch&, int) {
    await(post_recv(bytes, from, kMessage), until(operation.deadline) + kGlooIsLater);
  });
}

std::unique_ptr<Transport> GlooTransport::split(const std::vector<int>& ranks, const std::string& name) {
  GlooOptions options = options_;
  const auto me = std::find(ranks.begin(), ranks.end(), options_.rank);
  TUTTI_CHECK(me != ranks.end(), "rank {}", options_.rank);
  options.rank = static_cast<int>(me - ranks.begin());
  options.world = static_cast<int>(ranks.size());
  options.who = names_of(options_.who, ranks);
  return std::make_unique<GlooTransport>(with_prefix(table_, name + "/"), options);
}

}  // namespace

bool gloo_built() { return true; }

std::unique_ptr<Transport> gloo_transport(std::shared_ptr<Rendezvous> table, const GlooOptions& options) {
  return std::make_unique<GlooTransport>(std::move(table), options);
}

}  // namespace tutti::comm
