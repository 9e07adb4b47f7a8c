#include "tutti/transport/tcp/connections.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <string_view>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/secret.h"
#include "tutti/net/stream.h"
#include "tutti/net/tls.h"
#include "tutti/rpc/handshake.h"
#include "tutti/rpc/host.h"
#include "tutti/rpc/wire.h"
#include "tutti/transport/members.h"

namespace tutti::comm::tcp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The purpose of these connections, each of which is for one of two uses.
constexpr const char* kSums = "sums";
constexpr const char* kExchanges = "exchanges";
constexpr const char* kMessages = "messages";
// How often a rank that waits for others looks whether one has failed.
constexpr milliseconds kLook{50};

std::vector<net::Socket>* sockets_for(Connections& connections, const std::string& use) {
  return use == kExchanges ? &connections.exchanges : use == kMessages ? &connections.messages : nullptr;
}

// A rank on the loopback cannot be reached by one that is not, so this returns the address towards that one.
std::string reachable_address(const std::string& mine, const std::vector<std::string>& of_all) {
  if (!is_loopback(mine)) return mine;
  const auto elsewhere = std::find_if_not(of_all.begin(), of_all.end(),
                                          [](const std::string& address) { return is_loopback(address); });
  return elsewhere == of_all.end() ? mine : address_towards(*elsewhere);
}

// The loopback loses nothing, so that a congestion control that spreads packets over time (BBR) would only
// delay them there; Reno does not, and every kernel has it.
net::Socket tuned(net::Socket socket, bool loopback) {
  constexpr std::string_view kReno = "reno";
  if (loopback) setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
  return socket;
}

// The message of a rank on the board: its HOST:PORT, and whether it uses TLS.
struct Place {
  explicit Place(const std::string& message) {
    const size_t space = message.find(' ');
    address = parse_address(message.substr(0, space));
    encrypted = message.substr(space + 1) == kEncrypted;
  }

  static constexpr const char* kEncrypted = "tls";
  Address address;
  bool encrypted = false;
};

// Accepts the connections of the ranks below this one.
class Acceptor final : public rpc::Service {
 public:
  Acceptor(Connections& connections, bool loopback) : connections_(connections), loopback_(loopback) {}

  bool takes_connection(const rpc::Caller& /*caller*/) const override { return true; }
  void take_connection(const rpc::Caller& caller, std::unique_ptr<net::Stream> stream) override {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    try {
      auto* const sockets = sockets_for(connections_, caller.hello.at("use").get<std::string>());
      const auto rank = caller.hello.at("rank").get<size_t>();
      if (sockets == nullptr || rank >= sockets->size() || (*sockets)[rank].descriptor() >= 0) return;
      (*sockets)[rank] = tuned(stream->release(), loopback_);
    } catch (const std::exception&) {
      return;  // it does not follow the protocol
    }
    ++accepted_;
    changed_.notify_all();
  }
  // Waits until this many connections have come, or a rank has failed. Afterwards no more are taken. Returns
  // false if some are missing.
  bool await(size_t number, Rendezvous& roll, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [&] { return accepted_ == number; })) {
      if (Clock::now() >= deadline || roll.peek(kMissing)) break;
    }
    closed_ = true;
    return accepted_ == number;
  }
  rpc::Message serve(const rpc::Caller&, const std::string&, const rpc::Message&) override { return {}; }
  void gone(const rpc::Caller& /*caller*/) override {}

 private:
  Connections& connections_;
  const bool loopback_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t accepted_ = 0;  // both: guarded by mutex_
  bool closed_ = false;
};

}  // namespace

// Each rank connects to the ranks above it: all are listening by then. Rank 0 need not listen, since the
// board often has its port in the cluster.
Connections connect_ranks(const std::shared_ptr<Rendezvous>& board, const FailuresOptions& self,
                          const std::string& peer_host, uint16_t port, const net::Credentials& credentials,
                          milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  const auto call = [&](const char* phase, const std::string& message) {
    return roll_call(*with_prefix(board, phase), self, message, until(deadline));
  };
  const std::string mine = address_towards(peer_host);
  const auto addresses = call("address/", mine);
  const std::string address = reachable_address(mine, addresses);
  net::Credentials own = credentials;
  own.secret = board->set_once("key", random_key());  // only ranks of this job can read it

  const auto ranks = static_cast<size_t>(self.world);
  Connections connections{std::vector<net::Socket>(ranks), std::vector<net::Socket>(ranks)};
  Acceptor acceptor(connections, is_loopback(address));
  std::optional<rpc::Host> host;
  const auto listen = [&](int at) {
    host.emplace(rpc::HostOptions{.address = to_string(Address{address, at}),
                                  .credentials = own,
                                  .insecure = true,
                                  .purpose = kSums,
                                  .most_candidates = 128 + 2 * ranks},
                 acceptor);
  };
  if (self.rank > 0) {
    try {
      listen(port);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Overloaded || port == 0) throw;
      listen(0);  // the port is taken
    }
  }
  const auto tls = net::Tls::make(own, net::Tls::Side::Caller);
  const auto places = call("port/", fmt::format("{} {}", to_string(Address{address, host ? host->port() : 0}),
                                                tls ? Place::kEncrypted : "plain"));
  for (size_t r = 0; r < places.size(); ++r) {
    if (Place(places[r]).encrypted != (tls != nullptr))
      fail(ErrorKind::InvalidArgument,
           "{} {} TLS for what it sends, but {} {}: give all workers --tls-cert, --tls-key and --tls-ca, or "
           "none of them",
           name_of(self.who, self.rank), tls ? "uses" : "does not use",
           name_of(self.who, static_cast<int>(r)), tls ? "does not" : "does");
  }

  const auto connected = with_prefix(board, "connected/");
  const auto me = static_cast<size_t>(self.rank);
  for (size_t r = me + 1; r < ranks; ++r) {
    const Address place = Place(places[r]).address;
    try {
      for (const char* use : {kExchanges, kMessages}) {
        const net::TimeLimits time{.deadline = deadline};
        const auto stream =
            net::open_stream(to_string(place), tls.get(), deadline, net::CertificateName::Any);
        rpc::exchange_versions(*stream, time, kSums, own.checksums);
        rpc::Wire wire(*stream);
        rpc::greet_host(wire, own.secret, {{"rank", me}, {"use", use}}, nullptr, time, kSums);
        (*sockets_for(connections, use))[r] = tuned(stream->release(), is_loopback(place.host));
      }
    } catch (const Error& error) {
      const std::string text = fmt::format(
          "connect failed: {} and {}: {}{}", name_of(self.who, self.rank),
          name_of(self.who, static_cast<int>(r)), error.what(),
          is_loss(error)
              ? ". All ranks had registered, so the second one has ended since then, or a firewall "
                "blocks the connection"
              : "");
      fail(error.kind(), "{}", connected->set_once(kMissing, text));
    }
  }
  if (!acceptor.await(2 * me, *connected, deadline))
    fail(ErrorKind::Timeout, "{}",
         connected->set_once(kMissing,
                             fmt::format("connect failed: not all ranks below {} have connected to it within "
                                         "{:g} s. Look at their output, or raise --timeout",
                                         name_of(self.who, self.rank), seconds(timeout))));
  // A rank that continued or gave up while others still connect would disconnect them without a reason.
  roll_call(*connected, self, "", until(deadline));
  return connections;
}

}  // namespace tutti::comm::tcp
