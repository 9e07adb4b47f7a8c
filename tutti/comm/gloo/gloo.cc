#include "tutti/comm/gloo/gloo.h"

#include <algorithm>
#include <arpa/inet.h>
#include <csignal>
#include <ctime>
#include <list>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/comm/failure_board.h"

// LibTorch has been built with it, but does not say so to others.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Pending = c10::intrusive_ptr<c10d::Work>;

// What is sent for different reasons never meets.
constexpr int kExchangeTag = 0;
constexpr int kMessageTag = 1;
constexpr int kLifelineTag = 2;

constexpr const char* kLoopback = "127.0.0.1";

// The board keeps the deadlines. Gloo's own comes later, for the case that the board cannot.
constexpr milliseconds kGlooIsLater{60000};

milliseconds until(Clock::time_point deadline) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline - Clock::now()));
}

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

// A table as Gloo wants it, while it connects.
class TableStore final : public c10d::Store {
 public:
  TableStore(std::shared_ptr<Rendezvous> table, Clock::time_point deadline)
      : table_(std::move(table)), deadline_(deadline) {}

  // Pure virtual in LibTorch 2.x, unknown to 1.13.
  c10::intrusive_ptr<c10d::Store> clone() { return c10::make_intrusive<TableStore>(table_, deadline_); }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    table_->set(key, {value.begin(), value.end()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    const std::string value = table_->get(key, until(deadline_));
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return table_->peek(key); });
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) table_->get(key, until(deadline_));
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }
  int64_t add(const std::string&, int64_t) override { unused(); }
  bool deleteKey(const std::string&) override { unused(); }
  int64_t getNumKeys() override { unused(); }

 private:
  [[noreturn]] static void unused() {
    fail(ErrorKind::Bug, "this version of Gloo asks more of a table than it has");
  }

  const std::shared_ptr<Rendezvous> table_;
  const Clock::time_point deadline_;
};

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

// This machine's own address on the way to another: connecting a datagram socket sends nothing and only asks
// the kernel for the route. "" where there is none.
std::string address_on_route(const addrinfo& to) {
  const int fd = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  const bool found = ::connect(fd, to.ai_addr, to.ai_addrlen) == 0 && ::getsockname(fd, address, &size) == 0;
  ::close(fd);
  return found ? numeric(address, size) : "";
}

std::string address_towards(const std::string& host) {
  if (host.empty()) return kLoopback;
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // A port there has to be; which one does not matter.
  const int error = ::getaddrinfo(host.c_str(), "9", &hints, &list);
  if (error != 0)
    fail(ErrorKind::InvalidArgument, "host '{}' is not known here: {}. Check the name", host,
         ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(list, &freeaddrinfo);
  for (const addrinfo* to = list; to != nullptr; to = to->ai_next) {
    std::string address = address_on_route(*to);
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
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  for (const char* usual : {"closed by peer", "reset by peer", "Broken pipe", "Socket closed"}) {
    if (text.find(usual) != std::string::npos) return "";
  }
  const size_t place = text.find("] ");
  return text.starts_with('[') && place != std::string::npos ? text.substr(place + 2) : text;
}

class GlooTransport final : public Transport, public OwnAllReduce, public OnBoard {
 public:
  GlooTransport(std::shared_ptr<Rendezvous> table, GlooOptions options)
      : table_(std::move(table)), options_(std::move(options)) {
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
  Pending post_send(ConstBytes bytes, int to, int tag);
  Pending post_recv(Bytes bytes, int from, int tag);
  void await(const Pending& pending, milliseconds patience);
  template <class Body>
  void attempt(const Operation& operation, Party party, const std::vector<int>& peers, const Body& body);

  const std::shared_ptr<Rendezvous> table_;  // shared with its other parts
  const GlooOptions options_;
  std::byte lifeline_byte_{};
  std::mutex posting_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;  // guarded by posting_, after construction
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
    for (const int peer : peers()) lifelines_.push_back(post_recv({&lifeline_byte_, 1}, peer, kLifelineTag));
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

Pending GlooTransport::post_send(ConstBytes bytes, int to, int tag) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  return group_->send(one, to, tag);
}

Pending GlooTransport::post_recv(Bytes bytes, int from, int tag) {
  std::vector<at::Tensor> one{view(bytes)};
  const std::lock_guard lock(posting_);
  return group_->recv(one, from, tag);
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
      if (!at(recvs, r).empty()) in[static_cast<size_t>(r)] = post_recv(at(recvs, r), r, kExchangeTag);
      if (!at(sends, r).empty()) out[static_cast<size_t>(r)] = post_send(at(sends, r), r, kExchangeTag);
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
    await(post_send(bytes, to, kMessageTag), until(operation.deadline) + kGlooIsLater);
  });
}

void GlooTransport::recv(Bytes bytes, int from, const Operation& operation) {
  if (bytes.empty()) return;
  attempt(operation, Party::Two, {from}, [&](FailureBoard::Watch&, int) {
    await(post_recv(bytes, from, kMessageTag), until(operation.deadline) + kGlooIsLater);
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
