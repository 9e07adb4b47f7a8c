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

namespace tutti {

using std::chrono::milliseconds;

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

// Both families have it at one place.
int port_of(const SocketAddress& address) {
  sockaddr_in with_port{};
  std::memcpy(&with_port, &address.bytes, sizeof(with_port));
  return ntohs(with_port.sin_port);
}

Connected connect_within(const SocketAddress& address, milliseconds patience) {
  return connect_awaiting(address, [&](int socket) {
    pollfd ready{socket, POLLOUT, 0};
    return poll(&ready, 1, static_cast<int>(std::min(patience, milliseconds(INT_MAX)).count())) > 0;
  });
}

Connected connect_awaiting(const SocketAddress& address, const std::function<bool(int socket)>& await) {
  FileDescriptor socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return {FileDescriptor(), errno};
  if (connect(socket.get(), address.get(), address.size) == 0) return {std::move(socket), 0};
  if (errno != EINPROGRESS) return {FileDescriptor(), errno};
  if (!await(socket.get())) return {FileDescriptor(), ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return {error == 0 ? std::move(socket) : FileDescriptor(), error};
}

}  // namespace tutti
