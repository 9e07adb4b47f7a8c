#include "tutti/rpc/host.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
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
// The limit for connections that have not completed the handshake. A new one then replaces the oldest:
// legitimate callers complete it at once, so that strangers cannot keep others out.
constexpr size_t kMostStrangers = 128;
// The time for sending pending answers when the host closes.
constexpr milliseconds kFarewell{2000};
// A caller on a busy machine may be silent for seconds.
constexpr milliseconds kShortestSilence{9000};
// How often to check whether callers whose requests are being served are still connected.
constexpr milliseconds kWatch{100};

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
               net::Tls::of(options.credentials, net::Tls::Side::Listener),
               net::Heart::of_process(),
               Buffers(options.memory),
               Buffers(options.memory)},
        listener(options.address),
        acceptor(start_thread("accepting callers", [this] { accept_callers(); })) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void accept_callers();
  void let_in(std::unique_ptr<net::Stream> stream);
  void make_room_for_stranger();
  bool anyone_busy();

  HostState shared;
  const net::Listener listener;
  uint64_t callers = 0;               // so far; used by the acceptor thread only
  std::atomic<bool> closing = false;  // no more callers are accepted
  std::atomic<bool> closed = false;   // all connections have been closed
  std::mutex mutex;
  std::list<Connection> connections;  // guarded by mutex
  std::thread acceptor;               // last: it uses all of the above
};

// Accepts callers and watches the connected ones until the host is closed.
void Host::Impl::accept_callers() {
  while (!closed) {
    FileDescriptor socket = listener.accept(kWatch);
    const std::lock_guard lock(mutex);
    if (socket.get() >= 0 && !closing)
      let_in(std::make_unique<net::Stream>(std::move(socket),
                                           std::max(shared.options.silence, kShortestSilence)));
    for (Connection& connection : connections) connection.watch();
    connections.remove_if([](const Connection& connection) { return connection.done(); });
  }
}

void Host::Impl::let_in(std::unique_ptr<net::Stream> stream) {
  if (connections.size() >= kMostCallers) {
    // A caller with TLS would take this for a server without, and give up.
    if (shared.tls == nullptr)
      turn_away(*stream,
                Error(ErrorKind::Overloaded,
                      fmt::format("the server already has the maximum of {} connections", kMostCallers)));
    return;
  }
  make_room_for_stranger();
  try {
    connections.emplace_back(shared, ++callers, std::move(stream));
  } catch (const Error&) {
    // No thread could be started; the constructor has already told the caller.
  }
}

void Host::Impl::make_room_for_stranger() {
  const auto is_stranger = [](Connection& connection) { return connection.is_stranger(); };
  const auto strangers = std::count_if(connections.begin(), connections.end(), is_stranger);
  if (static_cast<size_t>(strangers) < kMostStrangers) return;
  const auto oldest = std::find_if(connections.begin(), connections.end(), is_stranger);
  if (oldest != connections.end()) oldest->hang_up();
}

bool Host::Impl::anyone_busy() {
  const std::lock_guard lock(mutex);
  return std::any_of(connections.begin(), connections.end(),
                     [](Connection& connection) { return connection.is_busy(); });
}

// Answers that the service has finished by now are still sent.
Host::Impl::~Impl() {
  closing = true;
  {
    const std::lock_guard lock(mutex);
    for (Connection& connection : connections) connection.tell_gone();
  }
  const auto deadline = Clock::now() + kFarewell;
  while (anyone_busy() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {
    const std::lock_guard lock(mutex);
    for (Connection& connection : connections) connection.hang_up();
  }
  closed = true;
  acceptor.join();
}

Host::Host(const HostOptions& options, Service& service) : impl_(std::make_unique<Impl>(options, service)) {}

Host::~Host() = default;

int Host::port() const { return impl_->listener.port(); }

}  // namespace tutti::rpc
