#include "tutti/base/net.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string_view>

#include <climits>

#include "tutti/base/error.h"

namespace tutti {

using std::chrono::milliseconds;

namespace {

constexpr int kWaiting = 1024;  // maximum number of connections not yet accepted

void allow(const FileDescriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

// Listens at `address`. An IPv6 socket listens in both families if `only_ipv6` is 0.
Listening listen_with(const SocketAddress& address, int only_ipv6) {
  const int family = address.bytes.ss_family;
  Listening listening{FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  const int socket = listening.socket.get();
  if (socket < 0) return {FileDescriptor(), 0, errno};
  // Connections of an earlier process that are still closing must not block the port.
  allow(listening.socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (family == AF_INET6) allow(listening.socket, IPPROTO_IPV6, IPV6_V6ONLY, only_ipv6);
  SocketAddress bound;
  if (bind(socket, address.get(), address.size) != 0 || listen(socket, kWaiting) != 0 ||
      getsockname(socket, bound.get(), &bound.size) != 0)
    return {FileDescriptor(), 0, errno};
  listening.port = port_of(bound);
  return listening;
}

// Returns this machine's own address on the route to another: connecting a datagram socket sends nothing and
// only asks the kernel for the route. Returns "" if there is no route.
std::string address_on_route(const SocketAddress& to) {
  const FileDescriptor socket(::socket(to.bytes.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  const bool found = socket.get() >= 0 && ::connect(socket.get(), to.get(), to.size) == 0 &&
                     ::getsockname(socket.get(), own.get(), &own.size) == 0;
  return found ? numeric(own) : "";
}

}  // namespace

Resolved resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) return {{}, gai_strerror(error)};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(first, freeaddrinfo);
  Resolved resolved;
  for (const addrinfo* item = first; item != nullptr; item = item->ai_next) {
    SocketAddress& address = resolved.addresses.emplace_back();
    address.size = item->ai_addrlen;
    std::memcpy(&address.bytes, item->ai_addr, item->ai_addrlen);
  }
  return resolved;
}

std::string numeric(const SocketAddress& address) {
  char host[NI_MAXHOST] = "";
  getnameinfo(address.get(), address.size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  std::string_view text = host;
  constexpr std::string_view kMapped = "::ffff:";
  if (text.starts_with(kMapped) && text.find('.') != std::string_view::npos)
    text.remove_prefix(kMapped.size());
  return std::string(text);
}

// The port is at the same place in the addresses of both families.
int port_of(const SocketAddress& address) {
  sockaddr_in with_port{};
  std::memcpy(&with_port, &address.bytes, sizeof(with_port));
  return ntohs(with_port.sin_port);
}

bool is_loopback(const SocketAddress& address) { return is_loopback(numeric(address)); }

bool is_loopback(std::string_view numbers) {
  const bool v4 = numbers.find_first_not_of("0123456789.") == std::string_view::npos;
  return (v4 && numbers.starts_with("127.")) || numbers == "::1";
}

std::string address_towards(const std::string& host) {
  if (host.empty()) return "127.0.0.1";
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

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

Connected connect_within(const SocketAddress& address, milliseconds patience) {
  FileDescriptor socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return {FileDescriptor(), errno};
  if (connect(socket.get(), address.get(), address.size) == 0) return {std::move(socket), 0};
  if (errno != EINPROGRESS) return {FileDescriptor(), errno};
  pollfd ready{socket.get(), POLLOUT, 0};
  if (poll(&ready, 1, static_cast<int>(std::min(patience, milliseconds(INT_MAX)).count())) <= 0)
    return {FileDescriptor(), ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return {error == 0 ? std::move(socket) : FileDescriptor(), error};
}

Listening listen_at(const SocketAddress& address) { return listen_with(address, 1); }

Listening listen_everywhere(int port) {
  SocketAddress address;
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&address.bytes, &both, sizeof both);
  address.size = sizeof both;
  Listening listening = listen_with(address, 0);
  if (listening.error != EAFNOSUPPORT && listening.error != EADDRNOTAVAIL) return listening;
  sockaddr_in ipv4{};  // this machine has no IPv6
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&address.bytes, &ipv4, sizeof ipv4);
  address.size = sizeof ipv4;
  return listen_with(address, 0);
}

}  // namespace tutti
