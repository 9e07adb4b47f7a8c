#include "tutti/comm/gloo/gloo.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <list>
#include <mutex>
#include <new>
#include <stdexcept>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/comm/failure_board.h"
#include "tutti/comm/gloo/table_store.h"

// LibTorch was built with this definition, but does not pass it on to programs that use it.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Pending = c10::intrusive_ptr<c10d::Work>;

// Messages sent for different reasons never match.
enum Reason { kExchange, kMessage, kLifeline };

// Returns a tag such that messages match only if sender and receiver agree on the number of earlier messages
// for this reason, the size, and in exchanges the operation. Gloo does not detect mismatches; they time out.
int tag_of(Reason reason, uint64_t number, uint64_t size, uint64_t key) {
  constexpr int kBits = 29;
  const uint64_t mixed = ((number + 1) * 0x9e3779b97f4a7c15 ^ size ^ key) * 0xbf58476d1ce4e5b9;
  return static_cast<int>(reason) << kBits | static_cast<int>(mixed >> (64 - kBits));
}

// The number of messages for one reason, by peer.
struct Counts {
  explicit Counts(int world) : sent(static_cast<size_t>(world)), received(sent) {}
  std::vector<uint64_t> sent;
  std::vector<uint64_t> received;
};

constexpr const char* kLoopback = "127.0.0.1";

// The board enforces the deadlines. Gloo's own comes this much later, in case the board cannot.
constexpr milliseconds kGlooIsLater{60000};

// While this object exists, writing to a connection that the other side has closed causes an error in this
// thread (and in threads that it starts) and does not end the process. Gloo does not block SIGPIPE itself.
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

// Returns this machine's own address on the route to another: connecting a datagram socket sends nothing and
// only asks the kernel for the route. Returns "" if there is no route.
std::string address_on_route(const SocketAddress& to) {
  const FileDescriptor socket(::socket(to.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  const bool found = socket.get() >= 0 && ::connect(socket.get(), to.get(), to.size) == 0 &&
                     ::getsockname(socket.get(), own.get(), &own.size) == 0;
  return found ? numeric(own) : "";
}

std::string address_towards(const std::string& host) {
  if (host.empty()) return kLoopback;
  // A port is required, but any port will do.
  const Resolved found = resolve(host, 9);
  if (found.addresses.empty())
    fail(ErrorKind::InvalidArgument, "host '{}' cannot be resolved: {}. Check the name", host, found.trouble);
  for (const SocketAddress& to : found.addresses) {
    std::string address = address_on_route(to);
    if (!address.empty()) return address;
  }
  fail(ErrorKind::InvalidArgument, "this machine has no network route to host '{}'", host);
}

// A rank on the loopback cannot be reached by one that is not, so this returns the address towards that one.
std::string reachable_address(const std::string& mine, const std::vector<std::string>& of_all) {
  if (!is_loopback(mine)) return mine;
  const auto elsewhere = std::find_if_not(of_all.begin(), of_all.end(),
                                          [](const std::string& address) { return is_loopback(address); });
  return elsewhere == of_all.end() ? mine : address_towards(*elsewhere);
}

at::Tensor view(ConstBytes bytes) {
  // Gloo's interface has no const, but it only reads the bytes that it sends.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

// Returns Gloo's message without its file and line, or "" if it only says that a connection was closed.
std::string reason(const std::exception& error) {
  const std::string text = first_line(error.what());
  for (const char* usual : {"closed by peer", "reset by peer", "Broken pipe", "Socket closed"}) {
    if (text.find(usual) != std::string::npos) return "";
  }
  const size_t place = text.find("] ");
  return text.starts_with('[') && place != std::string::npos ? text.substr(place + 2) : text;
}

// Returns true if the system refused a thread, a descriptor or memory. Gloo reports this only with the text
// of the system error.
bool out_of_resources(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const std::string text = error.what();
  for (const int code : {EAGAIN, EMFILE, ENFILE, ENOMEM}) {
    if (text.find(errno_text(code)) != std::string::npos) return true;
  }
  return false;
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
    return {.rank = options_.rank,
            .world = options_.world,
            .who = options_.who,
            .holder = options_.holder,
            .silence = options_.timeout};
  }
  std::vector<int> peers() const;
  void connect();
  void hang_up();
  Pending post_send(ConstBytes bytes, int to, Reason reason, uint64_t key = 0);
  Pending post_recv(Bytes bytes, int from, Reason reason, uint64_t key = 0);
  void await(const Pending& pending, milliseconds timeout);
  template <class Body>
  void attempt(const Operation& operation, Party party, const std::vector<int>& peers, const Body& body);

  const std::shared_ptr<Rendezvous> table_;  // shared with users of other prefixes of it
  const GlooOptions options_;
  std::byte lifeline_byte_{};
  std::mutex posting_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;  // guarded by posting_, after construction
  std::vector<Counts> counts_;                        // likewise; by reason
  std::vector<Pending> lifelines_;                    // one per peer: receives that never complete
  std::mutex waiting_;
  std::list<Pending> awaited_;           // guarded by waiting_; failed ones stay
  bool hung_up_ = false;                 // guarded by waiting_
  std::unique_ptr<FailureBoard> board_;  // last, so that it is destroyed first
};

std::vector<int> GlooTransport::peers() const {
  std::vector<int> peers;
  for (int r = 0; r < options_.world; ++r) {
    if (r != options_.rank) peers.push_back(r);
  }
  return peers;
}

void GlooTransport::connect() {
  const auto deadline = deadline_after(options_.timeout);
  const std::string mine = address_towards(options_.peer_host);
  const auto addresses = roll_call(*table_, board_options(), mine, options_.timeout);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->threads = 1;  // for Gloo's own all-reduce
  // All ranks are here, so connecting is fast unless one ends just now. Gloo waits up to five times this
  // timeout.
  options->timeout = std::max(until(deadline) / 5, milliseconds(1000));
  try {
    options->devices.push_back(
        c10d::ProcessGroupGloo::createDeviceForHostname(reachable_address(mine, addresses)));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<TableStore>(with_prefix(table_, "gloo/"), deadline), options_.rank,
        options_.world, options);
    for (const int peer : peers()) lifelines_.push_back(post_recv({&lifeline_byte_, 1}, peer, kLifeline));
    // A rank that continued or gave up while others still connect would disconnect them without a reason.
    roll_call(*with_prefix(table_, "connected/"), board_options(), "", options->timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (out_of_resources(error))
      fail(ErrorKind::Overloaded,
           "connect failed: {}. Raise the limits of this process (ulimit -n, -u, -v, or its control group's)",
           reason(error));
    fail(ErrorKind::PeerLost,
         "connect failed: {}. All ranks had registered, so one of them has ended since then, or a firewall "
         "blocks the connection",
         reason(error).empty() ? "a connection was closed" : reason(error));
  }
}

// Closes all connections, so that every waiting thread gets an exception, and nothing is written to any
// caller's memory any more. c10d has no call for this, but Gloo does it when a wait times out. Afterwards no
// operation is stuck, and the group can be destroyed as usual.
void GlooTransport::hang_up() {
  const NoSigpipe no_sigpipe;
  for (const Pending& lifeline : lifelines_) {
    try {
      lifeline->wait(milliseconds(1));
    } catch (const std::exception&) {
      // The timeout is intended, or the peer has already hung up.
    }
  }
  // Gloo does not wake threads that wait for a partly transferred message.
  const std::lock_guard lock(waiting_);
  hung_up_ = true;
  for (const Pending& pending : awaited_) pending->abort();
}

// Waits for the operation. Throws if it fails or is aborted.
void GlooTransport::await(const Pending& pending, milliseconds timeout) {
  std::unique_lock lock(waiting_);
  if (hung_up_) throw std::runtime_error("closed by peer");
  const auto place = awaited_.insert(awaited_.end(), pending);
  lock.unlock();
  const bool done = pending->wait(timeout);
  lock.lock();
  awaited_.erase(place);
  if (!done) throw std::runtime_error("closed by peer");
}

Pending GlooTransport::post_send(ConstBytes bytes, int to, Reason reason, uint64_t key) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  uint64_t& number = counts_[reason].sent[static_cast<size_t>(to)];
  return group_->send(one, to, tag_of(reason, number++, bytes.size(), key));
}

Pending GlooTransport::post_recv(Bytes bytes, int from, Reason reason, uint64_t key) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  uint64_t& number = counts_[reason].received[static_cast<size_t>(from)];
  return group_->recv(one, from, tag_of(reason, number++, bytes.size(), key));
}

// body(watch, peer) stores in `peer` the rank that it is dealing with; any exception means that it is gone.
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

// Moves data directly from and to the callers' memory. Gloo's all-to-all is as fast, but needs one buffer.
void GlooTransport::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                             const Operation& operation) {
  const auto at = [](const auto& all, int rank) { return all[static_cast<size_t>(rank)]; };
  std::vector<int> talking = peers();
  std::erase_if(talking, [&](int r) { return at(sends, r).empty() && at(recvs, r).empty(); });
  if (talking.empty()) return;
  const uint64_t key = key_of(operation);
  attempt(operation, Party::All, talking, [&](FailureBoard::Watch& watch, int& peer) {
    std::vector<Pending> out(sends.size());
    std::vector<Pending> in(recvs.size());
    for (const int r : talking) {
      peer = r;
      if (!at(recvs, r).empty()) in[static_cast<size_t>(r)] = post_recv(at(recvs, r), r, kExchange, key);
      if (!at(sends, r).empty()) out[static_cast<size_t>(r)] = post_send(at(sends, r), r, kExchange, key);
    }
    for (const int r : talking) {
      peer = r;
      const auto timeout = until(operation.deadline) + kGlooIsLater;
      if (const Pending& pending = at(in, r)) await(pending, timeout);
      if (const Pending& pending = at(out, r)) await(pending, timeout);
      watch.arrived(r);
    }
  });
}

// If a peer is lost, its connection reports an error, as in an exchange.
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
