#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/net.h"
#include "tutti/base/text.h"
#include "tutti/web/http.h"

// The side of the caller: get().
namespace tutti::web {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestAnswer = 16 << 20;

FileDescriptor connect_to(const std::string& address, Clock::time_point deadline) {
  const Address place = parse_address(address);
  const Resolved resolved = resolve(place.host, place.port);
  std::string trouble = resolved.trouble;
  for (const SocketAddress& each : resolved.addresses) {
    Connected connected = connect_within(each, until(deadline));
    if (connected.error == 0) return std::move(connected.socket);
    trouble = errno_text(connected.error);
  }
  fail(ErrorKind::PeerLost,
       "nothing answers at {}: {}. Is the run still there, and was it started with --web?", address, trouble);
}

// Waits until the socket is ready.
void await(const FileDescriptor& socket, short events, Clock::time_point deadline,
           const std::string& address) {
  pollfd event{socket.get(), events, 0};
  if (poll(&event, 1, poll_time(deadline)) == 0)
    fail(ErrorKind::Timeout, "{} has not answered in time", address);
}

}  // namespace

Answer get(const std::string& address, const std::string& path, const std::string& secret,
           std::chrono::milliseconds patience) {
  const auto deadline = deadline_after(patience);
  const FileDescriptor socket = connect_to(address, deadline);
  const std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\r\n", path, address,
                  secret.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", secret));
  std::string answer;
  std::array<char, 16384> bytes{};
  ssize_t got = 0;
  await(socket, POLLOUT, deadline, address);
  // A request is shorter than the buffer of a socket.
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    fail(ErrorKind::PeerLost, "{} has closed the connection", address);
  while (answer.size() < kLongestAnswer) {
    await(socket, POLLIN, deadline, address);
    got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) break;
    answer.append(bytes.data(), static_cast<size_t>(got));
  }
  if (got < 0) fail(ErrorKind::PeerLost, "{} has closed the connection", address);
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  constexpr std::string_view kEndOfHead = "\r\n\r\n";
  const auto status =
      answer.starts_with(kVersion) ? parse_int(answer.substr(kVersion.size(), 3)) : std::nullopt;
  const size_t end = answer.find(kEndOfHead);
  if (!status || end == std::string::npos)
    fail(ErrorKind::DataLoss, "{} answers, but not with HTTP: is this the port of --web?", address);
  return {.status = static_cast<int>(*status), .body = answer.substr(end + kEndOfHead.size())};
}

}  // namespace tutti::web
