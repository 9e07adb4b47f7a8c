#include "tutti/comm/tcp/connections.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/random_key.h"
#include "tutti/base/secret.h"
#include "tutti/base/text.h"

namespace tutti::comm::tcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kExchanges = 0;
constexpr uint32_t kMessages = 1;
// The time for a greeting, which a rank sends at once, and the number of connections that may owe theirs.
constexpr std::chrono::seconds kGreetingTime{5};
constexpr size_t kMostGuests = 64;

// The first bytes on every connection, from the rank that connects.
struct Greeting {
  uint32_t rank;
  uint32_t purpose;
  std::array<char, kProofSize> proof;
};

// Shows that the sender knows the key, which only ranks of this job can read in the table. A copy of it is of
// no use to others: there is one connection for each rank and purpose.
std::string proof_of(const std::string& key, const std::string& listener, const Greeting& greeting) {
  return prove(key, Side::Caller, "tcp", {listener, fmt::format("{} {}", greeting.rank, greeting.purpose)});
}

// A rank on the loopback cannot be reached by one that is not, so this returns the address towards that one.
std::string reachable_address(const std::string& mine, const std::vector<std::string>& of_all) {
  if (!is_loopback(mine)) return mine;
  const auto elsewhere = std::find_if_not(of_all.begin(), of_all.end(),
                                          [](const std::string& address) { return is_loopback(address); });
  return elsewhere == of_all.end() ? mine : address_towards(*elsewhere);
}

[[noreturn]] void fail_to_connect(int error) {
  if (is_shortage(error))
    fail(ErrorKind::Overloaded,
         "connect failed: {}. Raise the limits of this process (ulimit -n, -v, or its control group's)",
         errno_text(error));
  fail(ErrorKind::PeerLost,
       "connect failed: {}. All ranks had registered, so one of them has ended since then, or a firewall "
       "blocks the connection",
       errno_text(error));
}

// The loopback loses nothing, so that a congestion control that spreads packets over time (BBR) would only
// delay them there; Reno does not, and every kernel has it.
void tune(const FileDescriptor& socket, bool loopback) {
  constexpr std::string_view kReno = "reno";
  if (loopback) setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

// Completes the handshake of TLS. `who` is the rank at the other end.
void shake_hands(net::Socket& socket, const std::string& who, bool calls, Clock::time_point deadline) {
  const auto repeat = [&](const auto& attempt) {
    while (!attempt()) {
      pollfd ready{socket.descriptor(), static_cast<short>(socket.wants_write() ? POLLOUT : POLLIN), 0};
      poll(&ready, 1, poll_time(deadline));
      if (Clock::now() >= deadline) fail_to_connect(ETIMEDOUT);
    }
  };
  // The caller's handshake is over before its certificate is looked at, so the listener says that it is good.
  std::byte good{1};
  const net::Bytes place(&good, 1);
  const net::ConstBytes word(place);
  try {
    repeat([&] { return socket.shake_hands(); });
    repeat([&] { return (calls ? socket.receive({&place, 1}) : socket.send({&word, 1})) == 1; });
  } catch (const net::StreamEnd& end) {
    fail(end.kind(), "{}: {}", who, end.what());
  }
}

// The word of a rank in the table: its address, its port, and whether it uses TLS.
struct Place {
  explicit Place(const std::string& word) {
    const std::vector<std::string> parts = split(word, ' ');
    if (parts.size() == 3) address = parts[0];
    if (parts.size() == 3) port = static_cast<int>(parse_int(parts[1]).value_or(0));
    encrypted = parts.size() == 3 && parts[2] == kEncrypted;
  }

  static constexpr const char* kEncrypted = "tls";
  std::string address;
  int port = 0;
  bool encrypted = false;
};

FileDescriptor connect_to(const std::string& word, const std::string& key, Greeting greeting,
                          Clock::time_point deadline) {
  const Place place(word);
  const Resolved found = resolve(place.address, place.port);
  if (found.addresses.empty()) fail(ErrorKind::DataLoss, "'{}' is not the address of a rank", word);
  Connected connected = connect_within(found.addresses.front(), until(deadline));
  if (connected.error != 0) fail_to_connect(connected.error);
  tune(connected.socket, is_loopback(found.addresses.front()));
  const std::string proof = proof_of(key, word, greeting);
  std::copy_n(proof.begin(), greeting.proof.size(), greeting.proof.begin());
  // The first bytes of a connection always fit into its buffer.
  if (::send(connected.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting)
    fail_to_connect(errno);
  return std::move(connected.socket);
}

// Listens at this port, or at any other one if it is taken.
Listening listen_for_ranks(const std::string& address, uint16_t port) {
  Listening listening = listen_at(resolve(address, port).addresses.at(0));
  if (listening.error == EADDRINUSE) listening = listen_at(resolve(address, 0).addresses.at(0));
  if (listening.error != 0) fail_to_connect(listening.error);
  return listening;
}

// Accepts the connections of the ranks below this one. Strangers may connect as well, and stay silent.
class Acceptor {
 public:
  Acceptor(const FileDescriptor& listener, std::string word, std::string key, const BoardOptions& board,
           const net::Tls* tls, Connections& connections)
      : listener_(listener),
        word_(std::move(word)),
        key_(std::move(key)),
        board_(board),
        tls_(tls),
        connections_(connections) {}

  void accept(size_t missing, Clock::time_point deadline) {
    deadline_ = deadline;
    while (accepted_ < missing) {
      std::vector<pollfd> ready = {{listener_.get(), POLLIN, 0}};
      auto next_event = deadline;
      for (const Guest& guest : guests_) {
        ready.push_back({guest.socket.get(), POLLIN, 0});
        next_event = std::min(next_event, guest.deadline);
      }
      poll(ready.data(), ready.size(), poll_time(next_event));
      // This thread may be held up later, and the guests have spoken meanwhile.
      const auto now = Clock::now();
      if (now >= deadline) fail_to_connect(ETIMEDOUT);
      size_t i = 1;
      for (auto guest = guests_.begin(); guest != guests_.end(); ++i) {
        const auto next = std::next(guest);
        if (ready[i].revents != 0 ? listen_to(*guest) : now >= guest->deadline) guests_.erase(guest);
        guest = next;
      }
      if (ready[0].revents != 0) welcome();
    }
  }

 private:
  struct Guest {
    FileDescriptor socket;
    Clock::time_point deadline;
    Greeting greeting{};
    size_t done = 0;
  };

  // Strangers must not keep the ranks out: the guest that has been silent for longest makes room.
  void welcome() {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const bool shortage = socket.get() < 0 && is_shortage(errno);
    if (shortage && guests_.empty()) fail_to_connect(errno);
    if (socket.get() >= 0)
      guests_.push_back({.socket = std::move(socket), .deadline = Clock::now() + kGreetingTime});
    if (!shortage && guests_.size() <= kMostGuests) return;
    listen_to(guests_.front());
    guests_.pop_front();
  }

  // Reads what has come of the greeting. Returns true if the guest is dealt with.
  bool listen_to(Guest& guest) {
    auto* const to = reinterpret_cast<char*>(&guest.greeting) + guest.done;
    const ssize_t count = ::recv(guest.socket.get(), to, sizeof guest.greeting - guest.done, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) return true;
    guest.done += static_cast<size_t>(count);
    if (guest.done < sizeof guest.greeting) return false;
    const Greeting& said = guest.greeting;
    auto& sockets = said.purpose == kExchanges ? connections_.exchanges : connections_.messages;
    const bool ours = equal_proofs({said.proof.data(), said.proof.size()}, proof_of(key_, word_, said));
    if (!ours || said.rank >= sockets.size() || sockets[said.rank].descriptor() >= 0) return true;
    tune(guest.socket, is_loopback(Place(word_).address));
    net::Socket& socket = sockets[said.rank] = net::Socket(std::move(guest.socket));
    if (tls_ != nullptr) {
      socket.accept_tls(*tls_);
      shake_hands(socket, name_of(board_.who, static_cast<int>(said.rank)), false, deadline_);
    }
    ++accepted_;
    return true;
  }

  const FileDescriptor& listener_;
  const std::string word_;  // of the listener, in the table
  const std::string key_;
  const BoardOptions& board_;
  const net::Tls* const tls_;  // null: without
  Clock::time_point deadline_;
  Connections& connections_;
  std::list<Guest> guests_;
  size_t accepted_ = 0;
};

}  // namespace

// Each rank connects to the ranks above it: all are listening by then, and a connection does not have to be
// accepted before it may be used. Rank 0 need not listen, since the table often has its port in the cluster.
Connections connect_ranks(const std::shared_ptr<Rendezvous>& table, const BoardOptions& board,
                          const std::string& peer_host, uint16_t port, const net::TlsSides& tls,
                          milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  const auto call = [&](const char* phase, const std::string& word) {
    return roll_call(*with_prefix(table, phase), board, word, until(deadline));
  };
  const std::string mine = address_towards(peer_host);
  const auto addresses = call("address/", mine);
  const std::string address = reachable_address(mine, addresses);
  const Listening listening = board.rank == 0 ? Listening{} : listen_for_ranks(address, port);
  const std::string key = table->set_once("key", random_key());
  const bool encrypted = tls.listener != nullptr;
  const std::string word =
      fmt::format("{} {} {}", address, listening.port, encrypted ? Place::kEncrypted : "plain");
  const auto words = call("port/", word);
  for (size_t r = 0; r < words.size(); ++r) {
    if (Place(words[r]).encrypted != encrypted)
      fail(ErrorKind::InvalidArgument,
           "{} {} TLS for what it sends, but {} {}: give all workers --tls-cert, --tls-key and --tls-ca, or "
           "none of them",
           name_of(board.who, board.rank), encrypted ? "uses" : "does not use",
           name_of(board.who, static_cast<int>(r)), encrypted ? "does not" : "does");
  }

  const auto ranks = static_cast<size_t>(board.world);
  Connections connections{std::vector<net::Socket>(ranks), std::vector<net::Socket>(ranks)};
  const auto me = static_cast<uint32_t>(board.rank);
  for (size_t r = me + 1; r < ranks; ++r) {
    for (const uint32_t purpose : {kExchanges, kMessages}) {
      net::Socket socket(connect_to(words[r], key, {me, purpose, {}}, deadline));
      if (encrypted) {
        socket.begin_tls(*tls.caller, "");
        shake_hands(socket, name_of(board.who, static_cast<int>(r)), true, deadline);
      }
      (purpose == kExchanges ? connections.exchanges : connections.messages)[r] = std::move(socket);
    }
  }
  Acceptor(listening.socket, word, key, board, tls.listener.get(), connections)
      .accept(2 * size_t{me}, deadline);
  // A rank that continued or gave up while others still connect would disconnect them without a reason.
  call("connected/", "");
  return connections;
}

}  // namespace tutti::comm::tcp
