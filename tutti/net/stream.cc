#include "tutti/net/stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/net.h"

namespace tutti::net {
namespace {

using std::chrono::milliseconds;

// Larger reads go to their destination without a copy.
constexpr size_t kAhead = size_t{16} << 10;
constexpr milliseconds kBetweenLooks{100};
constexpr std::byte kBeat{0};
constexpr ConstBytes kBeatBytes(&kBeat, 1);

bool is_not_ready(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Stream::Stream(FileDescriptor socket, milliseconds silence) : socket_(std::move(socket)), silence_(silence) {}

// If a connection is closed while received bytes, such as a beat, are unread, the system drops what was sent
// and is still on its way.
Stream::~Stream() {
  std::array<std::byte, 4096> dropped;
  ::shutdown(socket_.descriptor(), SHUT_WR);
  while (::recv(socket_.descriptor(), dropped.data(), dropped.size(), MSG_DONTWAIT) > 0) {
  }
}

void Stream::shake_hands(const TimeLimits& time) {
  const auto until = time.next();
  while (!socket_.shake_hands()) wait(Direction::In, time, until);
}

void Stream::begin_tls(const Tls& tls, const std::string& host, const TimeLimits& time) {
  socket_.begin_tls(tls, host);
  shake_hands(time);
}

bool Stream::accept_tls(const Tls& tls, const TimeLimits& time) {
  std::byte first{};
  const auto until = time.next();
  while (true) {
    const ssize_t received = ::recv(socket_.descriptor(), &first, 1, MSG_PEEK);
    if (received > 0) break;
    if (received == 0 || !is_not_ready(errno)) throw StreamEnd(ErrorKind::PeerLost, kClosed);
    wait(Direction::In, time, until);
  }
  if (first != kFirstByteOfTls) return false;
  socket_.accept_tls(tls);
  shake_hands(time);
  return true;
}

void Stream::begin_checksums() {
  socket_.begin_records(ConstBytes(ahead_).subspan(ahead_begin_, ahead_end_ - ahead_begin_));
  ahead_begin_ = ahead_end_ = 0;
}

bool Stream::is_within_host() const {
  SocketAddress own;
  SocketAddress other;
  if (getsockname(socket_.descriptor(), own.get(), &own.size) != 0 ||
      getpeername(socket_.descriptor(), other.get(), &other.size) != 0)
    return false;  // it has ended already
  return is_loopback(other) || numeric(own) == numeric(other);
}

size_t Stream::receive_some(Bytes bytes) {
  const size_t received = socket_.receive({&bytes, 1});
  if (received > 0) quiet_ = {};
  return received;
}

// Receives what is there, if there is space for it, and drops the beats between two messages.
void Stream::fill() {
  if (ahead_begin_ == ahead_end_) ahead_begin_ = ahead_end_ = 0;
  ahead_.resize(kAhead);
  if (ahead_end_ < ahead_.size()) ahead_end_ += receive_some(Bytes(ahead_).subspan(ahead_end_));
  while (!in_message_ && ahead_begin_ < ahead_end_ && ahead_[ahead_begin_] == kBeat) ++ahead_begin_;
}

// Counts the time since the last look. More than a second does not count: this process may have been stopped.
bool Stream::is_silent() {
  const auto now = Clock::now();
  quiet_ += std::min<Clock::duration>(now - looked_, kBetweenBeats);
  looked_ = now;
  return quiet_ >= silence_;
}

void Stream::wait(Direction direction, const TimeLimits& time, Clock::time_point until) {
  const auto begin = Clock::now();
  if (begin >= until) fail(ErrorKind::Timeout, "no message came or was taken in time");
  const auto longest = time.look ? kBetweenLooks : kBetweenBeats;
  const auto step = std::min<Clock::duration>(until - begin, longest);
  // A message that is being sent may be refused, so that both directions are of interest.
  const bool in = direction == Direction::In || ahead_end_ < kAhead;
  const bool out = direction == Direction::Out || socket_.wants_write();
  if (in && socket_.has_pending()) return;
  pollfd ready{socket_.descriptor(), static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0)), 0};
  looked_ = begin;
  const bool woken = poll(&ready, 1, poll_time(begin + step)) > 0;
  if (!receives_) throw StreamEnd(ErrorKind::PeerLost, kClosed);
  if (woken) return;
  if (time.look) time.look();
  if (is_silent())
    throw StreamEnd(ErrorKind::PeerLost,
                    fmt::format("nothing was heard from it for {:g} s: it is stopped, or its machine or the "
                                "network is down",
                                seconds(silence_)));
}

size_t Stream::send_some(std::span<const ConstBytes> parts) {
  const std::lock_guard lock(mutex_);
  if (beat_pending_ && socket_.send({&kBeatBytes, 1}) == 0) return 0;
  beat_pending_ = false;
  return socket_.send(parts);
}

bool Stream::write(std::span<const ConstBytes> message, const TimeLimits& time) {
  std::vector<ConstBytes> parts;
  parts.reserve(message.size());
  for (const ConstBytes part : message)
    if (!part.empty()) parts.push_back(part);
  {
    const std::lock_guard lock(mutex_);
    // The other end would take this message for the rest of the last one.
    if (std::exchange(sending_, true)) throw StreamEnd(ErrorKind::PeerLost, "the last message is incomplete");
  }
  auto until = time.next();
  for (size_t next = 0; next < parts.size();) {
    size_t sent = 0;
    try {
      sent = send_some(std::span(parts).subspan(next));
    } catch (const StreamEnd&) {
      if (hears_something()) return false;
      throw;
    }
    if (sent == 0) {
      wait(Direction::Out, time, until);
      if (hears_something()) return false;
      continue;
    }
    until = time.next();
    for (; next < parts.size() && sent >= parts[next].size(); ++next) sent -= parts[next].size();
    if (sent > 0) parts[next] = parts[next].subspan(sent);
  }
  const std::lock_guard lock(mutex_);
  sending_ = false;
  return true;
}

// Returns true if a message of the other end has begun. Does not block.
bool Stream::hears_something() {
  if (!in_message_ && !has_more()) fill();
  return has_more();
}

bool Stream::has_more() const { return !in_message_ && ahead_begin_ < ahead_end_; }

void Stream::await_message(const TimeLimits& time) {
  const auto until = time.next();
  while (!hears_something()) wait(Direction::In, time, until);
  in_message_ = true;
}

void Stream::read(Bytes bytes, const TimeLimits& time) {
  auto until = time.next();
  while (!bytes.empty()) {
    size_t received = std::min(bytes.size(), ahead_end_ - ahead_begin_);
    if (received > 0) {
      std::copy_n(ahead_.begin() + static_cast<ptrdiff_t>(ahead_begin_), received, bytes.begin());
      ahead_begin_ += received;
    } else if (bytes.size() >= kAhead) {
      received = receive_some(bytes);
    } else {
      fill();
      if (ahead_begin_ < ahead_end_) continue;
    }
    if (received > 0) {
      bytes = bytes.subspan(received);
      until = time.next();
    } else {
      wait(Direction::In, time, until);
    }
  }
}

void Stream::end_message() {
  in_message_ = false;
  while (ahead_begin_ < ahead_end_ && ahead_[ahead_begin_] == kBeat) ++ahead_begin_;
}

// During a message, the bytes that arrive are left where they are, so that only the system can tell.
bool Stream::ended() {
  pollfd state{socket_.descriptor(), POLLRDHUP, 0};
  if (poll(&state, 1, 0) > 0) return true;
  if (in_message_ || has_more()) return false;
  try {
    fill();
    return !has_more() && is_silent();
  } catch (const StreamEnd&) {
    return true;
  }
}

bool Stream::has_unsent() const {
  int bytes = 0;
  return ioctl(socket_.descriptor(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void Stream::hang_up() { ::shutdown(socket_.descriptor(), SHUT_RDWR); }

// The socket wakes up the thread that waits.
void Stream::stop_receiving() {
  receives_ = false;
  ::shutdown(socket_.descriptor(), SHUT_RD);
}

void Stream::close_gently(Clock::time_point deadline) {
  ::shutdown(socket_.descriptor(), SHUT_WR);
  std::vector<std::byte> dropped(size_t{1} << 20);
  while (Clock::now() < deadline) {
    const ssize_t received = ::recv(socket_.descriptor(), dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (received > 0 || (received < 0 && errno == EINTR)) continue;
    if (received == 0 || !is_not_ready(errno)) return;
    pollfd ready{socket_.descriptor(), POLLIN, 0};
    poll(&ready, 1, poll_time(deadline));
  }
}

// A beat that fails is not an error: the thread that uses the connection will notice that it has ended.
void Stream::beat() {
  const std::lock_guard lock(mutex_);
  if (sending_) return;
  try {
    beat_pending_ = socket_.send({&kBeatBytes, 1}) == 0 && socket_.keeps_unsent();
  } catch (const StreamEnd&) {
    beat_pending_ = false;
  }
}

std::string Stream::address() const {
  SocketAddress other;
  if (getpeername(socket_.descriptor(), other.get(), &other.size) != 0) return "a caller that has gone";
  return to_string(Address{numeric(other), port_of(other)});
}

Socket Stream::release() {
  if (has_unread()) throw StreamEnd(ErrorKind::DataLoss, "received bytes that belong to no message");
  // Bytes that were sent have to arrive even if this end closes the connection soon (open_stream).
  const linger usual{0, 0};
  setsockopt(socket_.descriptor(), SOL_SOCKET, SO_LINGER, &usual, sizeof usual);
  return std::move(socket_);
}

std::unique_ptr<Stream> open_stream(const std::string& address, const Tls* tls, Clock::time_point deadline,
                                    CertificateName name, milliseconds silence) {
  const Address place = parse_address(address);
  const Resolved resolved = resolve(place.host, place.port);
  if (resolved.addresses.empty())
    throw StreamEnd(ErrorKind::PeerLost,
                    fmt::format("host '{}' cannot be resolved: {}", place.host, resolved.trouble));
  std::string obstacle;
  int left = static_cast<int>(resolved.addresses.size());
  for (const SocketAddress& candidate : resolved.addresses) {
    // An address that does not answer must not take the time of the next one.
    Connected connected = connect_within(candidate, until(deadline) / left--);
    if (connected.error == 0) {
      // Resets the connection when it is closed, so that the other end knows at once, even if it has not read
      // all that was sent before.
      const linger reset{1, 0};
      setsockopt(connected.socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      auto stream = std::make_unique<Stream>(std::move(connected.socket), silence);
      if (tls != nullptr)
        stream->begin_tls(*tls, name == CertificateName::Host ? place.host : "", {.deadline = deadline});
      return stream;
    }
    obstacle = fmt::format("connecting to {}: {}", numeric(candidate), errno_text(connected.error));
  }
  throw StreamEnd(ErrorKind::PeerLost, obstacle);
}

}  // namespace tutti::net
