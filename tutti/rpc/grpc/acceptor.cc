#include "tutti/rpc/grpc/acceptor.h"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/start_thread.h"
#include "tutti/rpc/grpc/common.h"

namespace tutti::rpc {
namespace {

using std::chrono::milliseconds;

// Reserved for what the process opens besides connections: files, and gRPC's polling.
constexpr rlim_t kSpareDescriptors = 32;
// The interval of checks while there are too few descriptors.
constexpr milliseconds kUntilSomeAreFree{50};

// A new descriptor gets the lowest free number.
bool has_spare_descriptors(int any) {
  const FileDescriptor next(fcntl(any, F_DUPFD_CLOEXEC, 0));
  if (next.get() < 0) return false;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  return static_cast<rlim_t>(next.get()) + kSpareDescriptors < limit.rlim_cur;
}

SocketAddress with_port(SocketAddress address, int port) {
  // The port is at the same offset in both address families.
  reinterpret_cast<sockaddr_in*>(address.get())->sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void require_listening(const Address& address, const Listening& listening) {
  if (listening.error != 0) fail_errno(listening.error, "listening at " + to_string(address));
}

std::vector<FileDescriptor> only(Listening listening) {
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(listening.socket));
  return sockets;
}

// A name may have several addresses, some of them not of this machine. Listens on all with the same port.
std::vector<FileDescriptor> listen_at_all(const Address& address, int& port) {
  port = address.port;
  std::vector<FileDescriptor> sockets;
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& place : resolve(address.host, address.port).addresses) {
    Listening listening = tutti::listen_at(with_port(place, port));
    if (listening.error == EADDRINUSE) require_listening(address, listening);
    error = listening.error;
    if (error != 0) continue;
    port = listening.port;
    sockets.push_back(std::move(listening.socket));
  }
  if (sockets.empty()) fail_errno(error, "listening at " + to_string(address));
  return sockets;
}

std::vector<FileDescriptor> listen_for(const Address& address, int& port) {
  if (address.host != "0.0.0.0" && address.host != "::") return listen_at_all(address, port);
  Listening listening = listen_everywhere(address.port);
  require_listening(address, listening);
  port = listening.port;
  return only(std::move(listening));
}

}  // namespace

Acceptor::Acceptor(const Address& address, Take take)
    : take_(std::move(take)),
      listeners_(listen_for(address, port_)),
      end_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (end_.get() < 0) fail_errno(errno, "creating an eventfd");
  thread_ = start_thread("accepting connections", [this] { accept_all(); });
}

Acceptor::~Acceptor() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof one);
  thread_.join();
}

void Acceptor::accept_all() {
  while (true) {
    const bool may_accept = has_spare_descriptors(end_.get());
    std::vector<pollfd> events = {{end_.get(), POLLIN, 0}};
    if (may_accept) {
      for (const FileDescriptor& listener : listeners_) events.push_back({listener.get(), POLLIN, 0});
    }
    poll(events.data(), events.size(), may_accept ? -1 : static_cast<int>(kUntilSomeAreFree.count()));
    if (events.front().revents != 0) return;
    for (auto event = events.begin() + 1; event != events.end(); ++event) {
      if (event->revents != 0) accept_from(event->fd);
    }
  }
}

// Ignores errors of a single connection, because the next one may succeed.
void Acceptor::accept_from(int listener) {
  const int connected = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (connected < 0) return;
  const int on = 1;
  setsockopt(connected, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // As in gRPC's own listener, because no ping gets through to a peer that does not read.
  setsockopt(connected, IPPROTO_TCP, TCP_USER_TIMEOUT, &kPingMs, sizeof kPingMs);
  take_(connected, listener);
}

}  // namespace tutti::rpc
