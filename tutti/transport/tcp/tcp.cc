#include "tutti/transport/tcp/tcp.h"

#include <algorithm>
#include <array>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/transport/doubling.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/group_call.h"
#include "tutti/transport/tcp/connections.h"
#include "tutti/transport/tcp/flows.h"
#include "tutti/transport/tcp/traffic.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using tcp::Flow;

// `Failures` enforces the deadlines. The deadlines of the connections come this much later, in case it
// cannot.
constexpr milliseconds kTcpIsLater{60000};

// How long a rank that leaves waits for each peer that receives nothing.
constexpr milliseconds kMostForFarewell{1000};

// The number of a message without bytes by which a rank says that it leaves in good order.
constexpr uint64_t kLast = ~uint64_t{0};

// The beginning of every message. All machines of a job have the same byte order.
struct Head {
  uint64_t number;  // of the exchange, or of the message in this direction; kLast: nothing more comes
  uint64_t key;     // hash of the operation; 0 in messages between two ranks
  uint64_t size;    // bytes that follow
  OperationLabel label;
};

// A message with its head, whose bytes are given by at(offset).
template <class At>
Flow flow_of(Flow::Way way, net::Socket& socket, int peer, Head& head, uint64_t size, At at) {
  return {.way = way,
          .socket = &socket,
          .peer = peer,
          .size = sizeof(Head) + size,
          .at = [&head, at](uint64_t offset) -> Bytes {
            if (offset >= sizeof(Head)) return at(offset - sizeof(Head));
            return std::as_writable_bytes(std::span(&head, 1)).subspan(offset);
          }};
}

// Sockets have no const, but only read the bytes that they send.
Bytes without_const(ConstBytes bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

// The message that comes next from a peer.
struct Incoming {
  Head head{};
  uint64_t done = 0;    // bytes of the head that have come
  uint64_t number = 0;  // of messages that have come whole

  bool is_known() const { return done == sizeof(Head); }
  bool is_last() const { return is_known() && head.number == kLast; }
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<Rendezvous> board, TcpOptions options)
      : board_(std::move(board)), options_(std::move(options)) {
    if (options_.world == 1) return;
    const auto ranks = static_cast<size_t>(options_.world);
    const FailuresOptions self{.rank = options_.rank,
                               .world = options_.world,
                               .who = options_.who,
                               .holder = options_.holder,
                               .silence = options_.timeout};
    connections_ = tcp::connect_ranks(board_, self, options_.peer_host, options_.port, options_.credentials,
                                      options_.timeout);
    sent_.resize(ranks);
    incoming_.resize(ranks);
    failures_ = std::make_unique<Failures>(with_prefix(board_, "failures/"), self, [this] { hang_up(); });
  }

  ~TcpTransport() override { say_farewell(); }

  std::string name() const override { return "tcp"; }
  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  Failures* failures() override { return failures_.get(); }

  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    const SpanScope span = span_of_exchange(sends, recvs, operation);
    tcp::Exchange messages(sends, recvs);
    carry(messages, operation);
  }
  void combine(std::span<const ArraySum> sums, const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  OperationLabel await_message(int from, const Operation& operation) override;
  std::optional<OperationLabel> next_message(int from) override;
  bool has_left(int rank) override { return incoming_[static_cast<size_t>(rank)].is_last(); }
  std::string known_of(int rank) override;
  void abandon(const std::string& text) override { failures_->give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  using Party = Failures::Party;

  std::string who(int rank) const { return name_of(options_.who, rank); }
  void hang_up() const;
  void say_farewell();
  std::vector<int> talking(const tcp::Traffic& traffic) const;
  void carry(tcp::Traffic& traffic, const Operation& operation);
  void require_same(const Head& mine, const Head& theirs, int peer, uint64_t expected) const;
  template <class Body>
  void attempt(const Operation& operation, Party party, const std::vector<int>& peers, const Body& body);

  const std::shared_ptr<Rendezvous> board_;  // shared with users of other prefixes of it
  const TcpOptions options_;
  tcp::Connections connections_;
  ScratchBuffer scratch_;               // for sums, used by one operation at a time
  uint64_t exchanges_ = 0;              // begun so far
  std::vector<uint64_t> sent_;          // messages by peer; each is used by one thread at a time
  std::vector<Incoming> incoming_;      // likewise
  std::unique_ptr<Failures> failures_;  // last, so that it is destroyed first
};

// Every waiting thread finds its connection closed. The sockets are closed by the destructor.
void TcpTransport::hang_up() const {
  for (const auto* sockets : {&connections_.exchanges, &connections_.messages}) {
    for (const net::Socket& socket : *sockets) {
      if (socket.descriptor() >= 0) ::shutdown(socket.descriptor(), SHUT_RDWR);
    }
  }
}

// A rank that receives from any knows then that this one was not killed. Takes what nobody has received: it
// would end the connection before the peer has all that was sent.
void TcpTransport::say_farewell() {
  for (size_t r = 0; r < connections_.messages.size(); ++r) {
    if (connections_.messages[r].descriptor() < 0) continue;
    Head head{kLast, 0, 0, {}};
    const int peer = static_cast<int>(r);
    Flow flow =
        flow_of(Flow::Way::Out, connections_.messages[r], peer, head, 0, [](uint64_t) { return Bytes(); });
    try {
      const auto soon = std::chrono::steady_clock::now() + kMostForFarewell;
      tcp::move_all(
          {&flow, 1}, [](const Flow&) {}, soon);
      std::array<std::byte, size_t{1} << 16> rest;
      while (::recv(connections_.messages[r].descriptor(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
      }
    } catch (const std::exception&) {
      // The peer has left before, or is lost.
    }
  }
}

template <class Body>
void TcpTransport::attempt(const Operation& operation, Party party, const std::vector<int>& peers,
                           const Body& body) {
  auto watch = failures_->watch(operation, party, peers);
  try {
    body(watch);
  } catch (const tcp::Closed& closed) {
    failures_->lost(watch, closed.peer, closed.what());
  } catch (const tcp::Changed& changed) {
    failures_->report(
        options_.if_changed,
        fmt::format("{} failed: {} has received other bytes than {} has sent: {}", describe(operation),
                    who(options_.rank), who(changed.peer), changed.what()));
  } catch (const Error& error) {
    failures_->report(error.kind(), error.what());
  }
}

// Returns the ranks to which this one has something to send, or from which it expects something. They send
// each other at least a head, so that they meet and compare their operations even if one of them only sends.
// Starts with the next rank, so that not all ranks begin with the same one.
std::vector<int> TcpTransport::talking(const tcp::Traffic& traffic) const {
  std::vector<int> peers;
  for (int i = 1; i < options_.world; ++i) {
    const int peer = (options_.rank + i) % options_.world;
    if (traffic.to(peer) + traffic.from(peer) > 0) peers.push_back(peer);
  }
  return peers;
}

void TcpTransport::carry(tcp::Traffic& traffic, const Operation& operation) {
  const uint64_t number = exchanges_++;
  const std::vector<int> peers = talking(traffic);
  if (peers.empty()) return;
  const Head head{number, key_of(operation), 0, OperationLabel(operation)};
  const auto ranks = static_cast<size_t>(options_.world);
  std::vector<Head> out(ranks, head);
  std::vector<Head> in(ranks);
  std::vector<int> open(ranks);  // flows by peer
  std::vector<bool> known(ranks);
  std::vector<Flow> flows;
  const auto add_flow = [&](Flow::Way way, int peer, uint64_t size, Head& begin, const auto& at) {
    begin.size = size;
    flows.push_back(flow_of(way, connections_.exchanges[static_cast<size_t>(peer)], peer, begin, size, at));
    ++open[static_cast<size_t>(peer)];
  };
  for (const int peer : peers) {
    add_flow(Flow::Way::Out, peer, traffic.to(peer), out[static_cast<size_t>(peer)],
             [&traffic, peer](uint64_t offset) { return without_const(traffic.outgoing(peer, offset)); });
  }
  for (const int peer : peers) {
    add_flow(Flow::Way::In, peer, traffic.from(peer), in[static_cast<size_t>(peer)],
             [&traffic, peer](uint64_t offset) { return traffic.incoming(peer, offset); });
  }
  attempt(operation, Party::All, peers, [&](Failures::Watch& watch) {
    const auto moved = [&](const Flow& flow) {
      const auto r = static_cast<size_t>(flow.peer);
      if (flow.way == Flow::Way::In) {
        if (flow.done < sizeof(Head)) return;
        if (!known[r]) require_same(head, in[r], flow.peer, traffic.from(flow.peer));
        known[r] = true;
        traffic.arrived(flow.peer, flow.done - sizeof(Head));
      }
      if (flow.is_done() && --open[r] == 0) watch.arrived(flow.peer);
    };
    tcp::move_all(flows, moved, operation.deadline + kTcpIsLater);
  });
}

// Adds chunks of the inputs while others are still on their way.
void TcpTransport::combine(std::span<const ArraySum> sums, const Operation& operation) {
  for (const ArraySum& sum : sums) {
    if (is_for_doubling(sum, options_.world)) {
      Transport::combine({&sum, 1}, operation);
      continue;
    }
    const SpanScope span(operation.timeline, Activity::Copy, "add on the way", operation.step);
    tcp::ChunkedSum chunks(sum, options_.rank, options_.world, scratch_);
    carry(chunks, with_whole(operation, sum.reduction));
  }
}

void TcpTransport::require_same(const Head& mine, const Head& theirs, int peer, uint64_t expected) const {
  if (mine.key == theirs.key && theirs.number < mine.number)
    fail(ErrorKind::InvalidArgument, "{} sent {} bytes to {} in an earlier {}, which expected none{}",
         who(peer), theirs.size, who(options_.rank), theirs.label.text(), kSameEverywhere);
  if (mine.number != theirs.number || mine.key != theirs.key) {
    const bool first = options_.rank < peer;
    fail(ErrorKind::InvalidArgument, "{}",
         different_operations(who(std::min(options_.rank, peer)), first ? mine.label : theirs.label,
                              who(std::max(options_.rank, peer)), first ? theirs.label : mine.label));
  }
  if (theirs.size != expected)
    fail(ErrorKind::InvalidArgument, "{} failed: {} expects {} bytes from {}, which sends {}{}",
         mine.label.text(), who(options_.rank), expected, who(peer), theirs.size, kSameEverywhere);
}

void TcpTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  Head head{sent_[static_cast<size_t>(to)]++, 0, bytes.size(), OperationLabel(operation)};
  Flow flow = flow_of(Flow::Way::Out, connections_.messages[static_cast<size_t>(to)], to, head, bytes.size(),
                      [bytes](uint64_t offset) { return without_const(bytes.subspan(offset)); });
  attempt(operation, Party::Two, {to}, [&](Failures::Watch&) {
    tcp::move_all(
        {&flow, 1}, [](const Flow&) {}, operation.deadline + kTcpIsLater);
  });
}

OperationLabel TcpTransport::await_message(int from, const Operation& operation) {
  Incoming& incoming = incoming_[static_cast<size_t>(from)];
  Flow flow = flow_of(Flow::Way::In, connections_.messages[static_cast<size_t>(from)], from, incoming.head, 0,
                      [](uint64_t) { return Bytes(); });
  flow.done = incoming.done;
  attempt(operation, Party::Two, {from}, [&](Failures::Watch&) {
    tcp::move_all(
        {&flow, 1}, [&](const Flow&) { incoming.done = flow.done; }, operation.deadline + kTcpIsLater);
    if (incoming.is_last()) throw tcp::Closed(from, "");
  });
  return incoming.head.label;
}

std::optional<OperationLabel> TcpTransport::next_message(int from) {
  failures_->throw_if_failed();
  Incoming& incoming = incoming_[static_cast<size_t>(from)];
  if (incoming.is_last()) return std::nullopt;
  Operation operation = operation_of("recv", {}, options_.timeout);
  operation.peer = kAnyRank;
  attempt(operation, Party::Two, {from}, [&](Failures::Watch&) {
    Flow flow = flow_of(Flow::Way::In, connections_.messages[static_cast<size_t>(from)], from, incoming.head,
                        0, [](uint64_t) { return Bytes(); });
    flow.done = incoming.done;
    while (!flow.is_done() && tcp::move_some(flow)) incoming.done = flow.done;
  });
  if (!incoming.is_known() || incoming.is_last()) return std::nullopt;
  return incoming.head.label;
}

void TcpTransport::recv(Bytes bytes, int from, const Operation& operation) {
  Incoming& incoming = incoming_[static_cast<size_t>(from)];
  const Head mine{incoming.number, 0, bytes.size(), OperationLabel(operation)};
  bool known = false;
  Flow flow = flow_of(Flow::Way::In, connections_.messages[static_cast<size_t>(from)], from, incoming.head,
                      bytes.size(), [bytes](uint64_t offset) { return bytes.subspan(offset); });
  flow.done = incoming.done;
  const auto moved = [&](const Flow& flow) {
    if (known || flow.done < sizeof(Head)) return;
    known = true;
    if (incoming.head.number == kLast) throw tcp::Closed(from, "");
    const std::string text = other_message(who(options_.rank), mine.label, who(from), incoming.head.label);
    if (!text.empty()) fail(ErrorKind::InvalidArgument, "{}", text);
    require_same(mine, incoming.head, from, bytes.size());
  };
  attempt(operation, Party::Two, {from}, [&](Failures::Watch&) {
    moved(flow);
    tcp::move_all({&flow, 1}, moved, operation.deadline + kTcpIsLater);
  });
  incoming.done = 0;
  ++incoming.number;
}

std::string TcpTransport::known_of(int rank) {
  return fmt::format("{}: {}", who(rank), failures_->known_of(rank));
}

std::unique_ptr<Transport> TcpTransport::split(const std::vector<int>& ranks, const std::string& name) {
  TcpOptions options = options_;
  const auto me = std::find(ranks.begin(), ranks.end(), options_.rank);
  TUTTI_CHECK(me != ranks.end(), "rank {}", options_.rank);
  options.rank = static_cast<int>(me - ranks.begin());
  options.world = static_cast<int>(ranks.size());
  options.who = names_of(options_.who, ranks);
  auto board = with_prefix(board_, name + "/");
  meet_for_group(*board,
                 {.ranks = ranks, .rank = options_.rank, .who = options_.who, .timeout = options_.timeout});
  return std::make_unique<TcpTransport>(std::move(board), options);
}

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> board, const TcpOptions& options) {
  return std::make_unique<TcpTransport>(std::move(board), options);
}

}  // namespace tutti::comm
