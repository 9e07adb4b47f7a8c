#include "tools/launch/line_socket.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "tools/launch/line_splitter.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"

namespace tutti {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace

// Reads up to one buffer of data. Returns false if none is available now.
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
    if (auto line = take_line(received_)) return line;
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

FileDescriptor listen_at(const Address& address, std::string_view what) {
  const int port = address.port;
  Listening listening = is_loopback(address.host) ? listen_at(resolve(address.host, port).addresses.at(0))
                                                  : listen_everywhere(port);
  if (listening.error == EADDRINUSE) {
    fail(ErrorKind::Overloaded,
         "tutti run: port {} is in use on this host, but is needed by {}; end the program that listens "
         "there (ss -ltnp shows it), or choose another port",
         port, what);
  }
  if (listening.error != 0)
    fail_errno(listening.error, fmt::format("tutti run: listening at port {} for {}", port, what));
  return std::move(listening.socket);
}

std::optional<LineSocket> accept_at(const FileDescriptor& listener) {
  SocketAddress address;
  FileDescriptor socket(accept4(listener.get(), address.get(), &address.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.get() >= 0)
    return LineSocket(std::move(socket), fmt::format("{} port {}", numeric(address), port_of(address)));
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    fail_errno(errno, "tutti run: accepting a connection from another launcher");
  return std::nullopt;  // there is no connection, or it is closed already
}

}  // namespace tutti
