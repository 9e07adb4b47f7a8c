#include "tutti/rpc/host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/secret.h"
#include "tutti/base/start_thread.h"
#include "tutti/net/listener.h"
#include "tutti/net/stream.h"
#include "tutti/rpc/connection.h"
#include "tutti/rpc/handshake.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

// Limits the number of threads, of which each connection has one. No cluster has so many tasks.
constexpr size_t kMostCallers = 4096;
// The time for sending pending answers when the host closes, and for telling the callers.
constexpr milliseconds kToAnswer{2000};
constexpr milliseconds kToTakeLeave{500};
// A caller on a busy machine may be silent for seconds.
constexpr milliseconds kShortestSilence{9000};
// How often to check whether callers whose requests are being served are still connected.
constexpr milliseconds kWatch{100};
// The pause before the next caller, when candidates make room for it.
constexpr milliseconds kWhileFull{5};

void check_options(const HostOptions& options) {
  const net::Credentials& credentials = options.credentials;
  if (credentials.certificate.empty() && !credentials.authority.empty())
    fail(ErrorKind::InvalidArgument,
         "a server with --tls-ca also needs a certificate: give it --tls-cert and --tls-key");
  // A caller that needs a certificate has proved who it is by that.
  const bool has_secret = !credentials.secret.empty() || !credentials.authority.empty();
  require_secret(parse_address(options.address).host, has_secret, options.insecure);
}

const HostOptions& checked(const HostOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

struct Host::Impl {
  Impl(const HostOptions& options, Service& service)
      : shared{checked(options),
               service,
               net::Tls::make(options.credentials, net::Tls::Side::Listener),
               net::Heart::of_process(),
               Buffers(options.memory),
               Buffers(options.memory)},
        listener(options.address),
        port(listener->port()),
        acceptor(start_thread("accepting callers", [this] { accept_callers(); })) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void accept_callers();
  FileDescriptor accept();
  void let_in(std::unique_ptr<net::Stream> stream);
  void make_room_for_candidate();
  bool drop_oldest_candidate();
  void stop_listening();
  bool any(bool (Connection::*is_so)());
  void wait_while_any(bool (Connection::*is_so)(), milliseconds patience);
  void tell_all(void (Connection::*news)());

  HostState shared;
  // Used by the acceptor thread, which ends it; all others stop it only.
  std::optional<net::Listener> listener;
  const int port;
  uint64_t callers = 0;              // so far; used by the acceptor thread only
  std::atomic<bool> listens = true;  // more callers are accepted
  std::atomic<bool> closed = false;  // all connections have been closed
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Connection> connections;  // guarded by mutex
  std::thread acceptor;               // last: it uses all of the above
};

// Accepts callers and watches the connected ones until the host is closed.
void Host::Impl::accept_callers() {
  while (!closed) {
    FileDescriptor socket = accept();
    std::unique_lock lock(mutex);
    if (listens && socket.get() >= 0)
      let_in(std::make_unique<net::Stream>(std::move(socket),
                                           std::max(shared.options.silence, kShortestSilence)));
    for (Connection& connection : connections) connection.watch();
    connections.remove_if([](const Connection& connection) { return connection.done(); });
    if (listens) continue;
    listener.reset();
    changed.notify_all();
    changed.wait_for(lock, kWatch, [this] { return closed.load(); });
  }
}

// Candidates must not keep others out when the process has no file descriptors left.
FileDescriptor Host::Impl::accept() {
  if (!listens) return FileDescriptor();
  if (listener->has_spare_descriptors()) return listener->accept(kWatch);
  std::unique_lock lock(mutex);
  const bool makes_room = drop_oldest_candidate();
  lock.unlock();
  return listener->accept(makes_room ? kWhileFull : kWatch);
}

void Host::Impl::stop_listening() {
  std::unique_lock lock(mutex);
  if (!listener) return;
  listens = false;
  listener->stop();
  changed.wait(lock, [this] { return !listener; });
}

void Host::Impl::let_in(std::unique_ptr<net::Stream> stream) {
  if (connections.size() >= kMostCallers) {
    // A caller with TLS would take this for a server without, and give up.
    if (shared.tls == nullptr)
      turn_away(*stream,
                Error(ErrorKind::Overloaded,
                      fmt::format("the server already has the maximum of {} connections", kMostCallers)),
                shared.options.purpose);
    return;
  }
  make_room_for_candidate();
  try {
    connections.emplace_back(shared, ++callers, std::move(stream));
  } catch (const Error&) {
    // No thread could be started; the constructor has already told the caller.
  }
}

void Host::Impl::make_room_for_candidate() {
  const auto is_candidate = [](Connection& connection) { return connection.is_candidate(); };
  const auto candidates = std::count_if(connections.begin(), connections.end(), is_candidate);
  if (static_cast<size_t>(candidates) >= shared.options.most_candidates) drop_oldest_candidate();
}

// Returns false if there is none.
bool Host::Impl::drop_oldest_candidate() {
  const auto oldest = std::find_if(connections.begin(), connections.end(),
                                   [](Connection& connection) { return connection.is_candidate(); });
  if (oldest == connections.end()) return false;
  oldest->hang_up();
  return true;
}

bool Host::Impl::any(bool (Connection::*is_so)()) {
  const std::lock_guard lock(mutex);
  return std::any_of(connections.begin(), connections.end(),
                     [is_so](Connection& connection) { return (connection.*is_so)(); });
}

void Host::Impl::wait_while_any(bool (Connection::*is_so)(), milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (any(is_so) && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
}

void Host::Impl::tell_all(void (Connection::*news)()) {
  const std::lock_guard lock(mutex);
  for (Connection& connection : connections) (connection.*news)();
}

// Answers that the service has finished by now are still sent.
Host::Impl::~Impl() {
  stop_listening();
  wait_while_any(&Connection::is_known, shared.options.farewell);
  shared.closing = true;
  tell_all(&Connection::tell_gone);
  wait_while_any(&Connection::is_busy, kToAnswer);
  tell_all(&Connection::take_leave);
  wait_while_any(&Connection::is_known, kToTakeLeave);
  tell_all(&Connection::hang_up);
  {
    const std::lock_guard lock(mutex);
    closed = true;
  }
  changed.notify_all();
  acceptor.join();
}

void RefusedCallers::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  last_ = text;
  ++number_;
}

std::string RefusedCallers::text() const {
  const std::lock_guard lock(mutex_);
  if (number_ == 0) return "";
  return fmt::format(" (callers that this task has refused: {}; the last: {})", number_, last_);
}

Host::Host(const HostOptions& options, Service& service) : impl_(std::make_unique<Impl>(options, service)) {}

Host::~Host() = default;

int Host::port() const { return impl_->port; }

void Host::stop_listening() { impl_->stop_listening(); }

}  // namespace tutti::rpc
