#include "tools/launch/line_socket.h"

#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kWaiting = 1024;  // connections that have not been accepted yet

FileDescriptor open_socket(int family) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void allow(const FileDescriptor& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof value);
}

// 0, or errno.
int listen_to(const FileDescriptor& socket, const sockaddr* address, socklen_t size) {
  // What is left of earlier connections must not keep the port.
  allow(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  const bool done = bind(socket.get(), address, size) == 0 && listen(socket.get(), kWaiting) == 0;
  return done ? 0 : errno;
}

int listen_to_both_families(FileDescriptor& socket, int port) {
  socket = open_socket(AF_INET6);
  if (socket.get() < 0) return errno;
  allow(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  return listen_to(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

int listen_to_ipv4(FileDescriptor& socket, int port) {
  socket = open_socket(AF_INET);
  if (socket.get() < 0) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return listen_to(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

}  // namespace

// One bufferful. False where there is nothing now.
bool LineSocket::take_some() {
  std::array<char, 4096> buffer;
  ssize_t count = 0;
  do {
    count = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (count <= 0) close();
  if (count > 0) received_.append(buffer.data(), static_cast<size_t>(count));
  return count > 0;
}

std::optional<std::string> LineSocket::read_line(size_t longest) {
  while (true) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (received_.size() > longest) return std::exchange(received_, {});
    if (!is_open() || !take_some()) return std::nullopt;
  }
}

bool LineSocket::send(std::string_view text, milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (is_open() && !text.empty()) {
    const ssize_t count = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
      continue;
    }
    const bool full = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (!full || Clock::now() >= deadline) {
      close();
    } else {
      pollfd room{socket_.get(), POLLOUT, 0};
      poll(&room, 1, poll_time(deadline));
    }
  }
  return is_open();
}

FileDescriptor listen_at(int port, std::string_view what) {
  FileDescriptor socket;
  int error = listen_to_both_families(socket, port);
  if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) error = listen_to_ipv4(socket, port);  // no IPv6 here
  if (error == EADDRINUSE) {
    fail(ErrorKind::InvalidArgument,
         "tutti run: port {} is in use on this host, but it is {}: end what listens there (ss -ltnp shows "
         "it), or "
         "name another port",
         port, what);
  }
  if (error != 0) fail_errno(error, fmt::format("tutti run: listening at port {}, {}", port, what));
  return socket;
}

std::optional<LineSocket> accept_at(const FileDescriptor& listener) {
  SocketAddress address;
  FileDescriptor socket(accept4(listener.get(), address.get(), &address.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() >= 0)
    return LineSocket(std::move(socket), fmt::format("{} port {}", numeric(address), port_of(address)));
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    fail_errno(errno, "tutti run: taking a connection from another launcher");
  return std::nullopt;  // nobody, or gone again
}

}  // namespace tutti
