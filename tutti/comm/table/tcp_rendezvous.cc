#include "tutti/comm/table/tcp_rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/comm/table/client.h"
#include "tutti/comm/table/server.h"

namespace tutti::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstRetry{1};
constexpr milliseconds kLongestRetry{50};
// Time limit for each address: a host that is down or stopped does not answer at all.
constexpr milliseconds kConnectTime{3000};

class Served final : public ServedTable {
 public:
  Served(std::vector<Listening> listeners, const ServeOptions& options)
      : table_(std::make_shared<LocalRendezvous>()), server_(std::move(listeners), options, table_) {}

  void set(const std::string& key, const std::string& value) override { table_->set(key, value); }
  std::string get(const std::string& key, milliseconds timeout) override { return table_->get(key, timeout); }
  std::optional<std::string> peek(const std::string& key) override { return table_->peek(key); }
  std::string set_once(const std::string& key, const std::string& value) override {
    return table_->set_once(key, value);
  }
  std::string hold(const std::string& key, const std::string& value) override {
    return table_->hold(key, value);
  }
  bool ended() const override { return false; }
  void stop_listening() override { server_.stop_listening(); }

 private:
  const std::shared_ptr<LocalRendezvous> table_;  // shared with the server's thread
  table::Server server_;
};

[[noreturn]] void fail_to_listen(int error, const std::string& where, uint16_t port) {
  if (error == EADDRINUSE)
    fail(ErrorKind::Overloaded,
         "port {} of this machine is in use, perhaps by another job. Choose another port, or end that job",
         port);
  fail_errno(error, fmt::format("serving the table of the ranks at {}:{}", where, port));
}

// Listens at all hosts. Skips addresses of other machines and of unsupported address families.
std::vector<Listening> listen_at_hosts(const ServeOptions& options) {
  std::vector<Listening> listeners;
  uint16_t port = options.port;
  int error = EADDRNOTAVAIL;
  for (const std::string& host : options.hosts) {
    for (const SocketAddress& address : resolve(host, port).addresses) {
      Listening listening = listen_at(address);
      const bool passed = listening.error == EADDRNOTAVAIL || listening.error == EAFNOSUPPORT;
      // Several names may resolve to the same address.
      const bool again = listening.error == EADDRINUSE && !listeners.empty();
      if (listening.error != 0 && !passed && !again) fail_to_listen(listening.error, host, port);
      if (listening.error != 0) continue;
      port = static_cast<uint16_t>(listening.port);
      listeners.push_back(std::move(listening));
    }
  }
  if (listeners.empty()) fail_to_listen(error, fmt::format("{}", fmt::join(options.hosts, ", ")), port);
  return listeners;
}

std::vector<Listening> listen_for(const ServeOptions& options) {
  if (!options.hosts.empty()) return listen_at_hosts(options);
  std::vector<Listening> listeners;
  listeners.push_back(listen_everywhere(options.port));
  if (listeners[0].error != 0) fail_to_listen(listeners[0].error, "all addresses", options.port);
  return listeners;
}

void try_address(const FindOptions& options, const std::string& host, const SocketAddress& address,
                 Clock::time_point deadline, FindAttempt& attempt) {
  const auto patience = [&] { return std::min(until(deadline), kConnectTime); };
  Connected connected = connect_within(address, patience());
  // Retrying would not help.
  if (is_shortage(connected.error))
    fail_errno(connected.error, fmt::format("connecting to the table of the {} at {}:{}", options.purpose,
                                            host, options.port));
  if (connected.error != 0) {
    attempt.nobody = errno_text(connected.error);
    return;
  }
  const int on = 1;
  setsockopt(connected.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const table::Greeting greeting =
      table::greet(connected.socket, options.purpose, options.key, Clock::now() + patience());
  if (greeting == table::Greeting::Done) {
    const std::string name = fmt::format("{}:{}", host, options.port);
    attempt.found = {std::make_shared<table::Client>(std::move(connected.socket), name), host};
  } else {
    (greeting == table::Greeting::Refused ? attempt.refused : attempt.somebody) = host;
  }
}

FindAttempt try_all(const FindOptions& options, Clock::time_point deadline) {
  FindAttempt attempt;
  for (const std::string& host : options.hosts) {
    const Resolved resolved = resolve(host, options.port);
    if (resolved.addresses.empty()) attempt.nobody = resolved.trouble;
    for (const SocketAddress& address : resolved.addresses) {
      try_address(options, host, address, deadline, attempt);
      if (attempt.found) return attempt;
    }
  }
  return attempt;
}

[[noreturn]] void fail_refused(const std::string& host, uint16_t port) {
  fail(ErrorKind::InvalidArgument,
       "another job uses {}:{}, or rank 0 there has another secret. Give all tasks of a job the same "
       "TUTTI_SECRET "
       "(--secret); if that is another job, wait until it has ended, or choose other addresses",
       host, port);
}

[[noreturn]] void fail_late(const FindOptions& options, const FindAttempt& last) {
  if (!last.refused.empty()) fail_refused(last.refused, options.port);
  if (!last.somebody.empty())
    fail(ErrorKind::Timeout,
         "a program listens at {}:{}, but did not answer as the table of rank 0 within {:g} s. Check that "
         "rank 0 is not stopped, and that no other program uses this port",
         last.somebody, options.port, seconds(options.timeout));
  fail(ErrorKind::Timeout,
       "nothing answered at {}:{} within {:g} s ({}). Check that rank 0 is running, that this is its host, "
       "and that no firewall blocks the connection; or raise --timeout",
       fmt::join(options.hosts, ", "), options.port, seconds(options.timeout), last.nobody);
}

}  // namespace

ServedRendezvous serve_tcp_rendezvous(const ServeOptions& options) {
  std::vector<Listening> listeners = listen_for(options);
  const auto port = static_cast<uint16_t>(listeners.front().port);
  return {std::make_shared<Served>(std::move(listeners), options), port};
}

FindAttempt try_tcp_rendezvous(const FindOptions& options) {
  return try_all(options, deadline_after(options.timeout));
}

FoundRendezvous find_tcp_rendezvous(const FindOptions& options) {
  const auto deadline = deadline_after(options.timeout);
  std::string refused;
  for (milliseconds pause = kFirstRetry;; pause = std::min(2 * pause, kLongestRetry)) {
    FindAttempt attempt = try_all(options, deadline);
    if (attempt.found) return *std::move(attempt.found);
    if (attempt.refused.empty()) attempt.refused = refused;
    refused = attempt.refused;
    if (!refused.empty() && !options.several_machines) fail_refused(refused, options.port);
    if (Clock::now() >= deadline) fail_late(options, attempt);
    std::this_thread::sleep_for(std::min(pause, until(deadline)));
  }
}

}  // namespace tutti::comm
