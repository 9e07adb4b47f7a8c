#include "tutti/net/stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
// Smaller parts of a message are encrypted together: every record of TLS costs a system call.
constexpr size_t kRecord = size_t{16} << 10;
constexpr milliseconds kBetweenLooks{100};
constexpr std::byte kBeat{0};
constexpr std::byte kHandshakeOfTls{22};

[[noreturn]] void fail_lost(int error) { throw StreamEnd(ErrorKind::PeerLost, errno_text(error)); }
[[noreturn]] void fail_closed() {
  throw StreamEnd(ErrorKind::PeerLost, "the other end has closed the connection");
}

bool is_not_ready(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

size_t receive_from(int socket, Bytes bytes) {
  const ssize_t received = ::recv(socket, bytes.data(), bytes.size(), 0);
  if (received == 0) fail_closed();
  if (received > 0) return static_cast<size_t>(received);
  if (!is_not_ready(errno)) fail_lost(errno);
  return 0;
}

size_t send_to(int socket, std::span<const ConstBytes> parts) {
  constexpr size_t kMost = 64;
  std::array<iovec, kMost> buffers{};
  msghdr message{};
  message.msg_iov = buffers.data();
  for (const ConstBytes part : parts.first(std::min(parts.size(), kMost)))
    buffers[message.msg_iovlen++] = {const_cast<std::byte*>(part.data()), part.size()};
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (!is_not_ready(errno)) fail_lost(errno);
  return 0;
}

size_t encrypt_to(TlsSession& session, std::span<const ConstBytes> parts) {
  if (parts.front().size() >= kRecord || parts.size() == 1) return session.write(parts.front());
  std::array<std::byte, kRecord> record;
  size_t size = 0;
  for (const ConstBytes part : parts) {
    const size_t taken = std::min(part.size(), kRecord - size);
    std::copy_n(part.begin(), taken, record.begin() + static_cast<ptrdiff_t>(size));
    size += taken;
    if (size == kRecord) break;
  }
  return session.write(std::span(record).first(size));
}

}  // namespace

Stream::Stream(FileDescriptor socket, milliseconds silence) : socket_(std::move(socket)), silence_(silence) {
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// What was received and not read, such as a beat, would make the system drop what was sent and is on its way.
Stream::~Stream() {
  std::array<std::byte, 4096> dropped;
  ::shutdown(socket_.get(), SHUT_WR);
  while (::recv(socket_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT) > 0) {
  }
}

void Stream::handshake(const std::function<bool(TlsSession&)>& step, const TimeLimits& time) {
  const auto until = time.next();
  while (true) {
    Direction direction = Direction::In;
    {
      const std::lock_guard lock(mutex_);
      if (step(*tls_)) return;
      if (tls_->wants_write()) direction = Direction::Out;
    }
    wait(direction, time, until);
  }
}

void Stream::begin_tls(const Tls& tls, const std::string& host, const TimeLimits& time) {
  tls_ = std::make_unique<TlsSession>(tls, socket_.get());
  tls_->expect_host(host);
  handshake([](TlsSession& session) { return session.connect(); }, time);
}

bool Stream::accept_tls(const Tls& tls, const TimeLimits& time) {
  std::byte first{};
  const auto until = time.next();
  while (true) {
    const ssize_t received = ::recv(socket_.get(), &first, 1, MSG_PEEK);
    if (received > 0) break;
    if (received == 0) fail_closed();
    if (!is_not_ready(errno)) fail_lost(errno);
    wait(Direction::In, time, until);
  }
  if (first != kHandshakeOfTls) return false;
  tls_ = std::make_unique<TlsSession>(tls, socket_.get());
  handshake([](TlsSession& session) { return session.accept(); }, time);
  return true;
}

size_t Stream::receive_some(Bytes bytes) {
  size_t received = 0;
  if (tls_ == nullptr) {
    received = receive_from(socket_.get(), bytes);
  } else {
    const std::lock_guard lock(mutex_);
    received = tls_->read(bytes);
  }
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
  bool out = direction == Direction::Out;
  if (tls_ != nullptr) {
    const std::lock_guard lock(mutex_);
    if (in && tls_->has_pending()) return;
    out = out || tls_->wants_write();
  }
  pollfd ready{socket_.get(), static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0)), 0};
  looked_ = begin;
  const bool is_ready = poll(&ready, 1, poll_time(begin + step)) > 0;
  if (time.look) time.look();
  if (!is_ready && is_silent())
    throw StreamEnd(ErrorKind::PeerLost,
                    fmt::format("nothing was heard from it for {:g} s: it is stopped, or its machine or the "
                                "network is down",
                                seconds(silence_)));
}

size_t Stream::send_some(std::span<const ConstBytes> parts) {
  const std::lock_guard lock(mutex_);
  if (tls_ == nullptr) return send_to(socket_.get(), parts);
  if (beat_pending_ && tls_->write({&kBeat, 1}) == 0) return 0;
  beat_pending_ = false;
  return encrypt_to(*tls_, parts);
}

bool Stream::write(std::span<const ConstBytes> message, const TimeLimits& time) {
  std::vector<ConstBytes> parts;
  parts.reserve(message.size());
  for (const ConstBytes part : message)
    if (!part.empty()) parts.push_back(part);
  {
    const std::lock_guard lock(mutex_);
    sending_ = true;
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
  pollfd state{socket_.get(), POLLRDHUP, 0};
  if (poll(&state, 1, 0) > 0) return true;
  if (in_message_ || has_more()) return false;
  try {
    fill();
    return !has_more() && is_silent();
  } catch (const StreamEnd&) {
    return true;
  }
}

void Stream::hang_up() { ::shutdown(socket_.get(), SHUT_RDWR); }

void Stream::close_gently(Clock::time_point deadline) {
  ::shutdown(socket_.get(), SHUT_WR);
  std::vector<std::byte> dropped(size_t{1} << 20);
  while (Clock::now() < deadline) {
    const ssize_t received = ::recv(socket_.get(), dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (received > 0 || (received < 0 && errno == EINTR)) continue;
    if (received == 0 || !is_not_ready(errno)) return;
    pollfd ready{socket_.get(), POLLIN, 0};
    poll(&ready, 1, poll_time(deadline));
  }
}

// A beat that fails is not an error: the thread that uses the connection will notice that it has ended.
void Stream::beat() {
  const std::lock_guard lock(mutex_);
  if (sending_) return;
  if (tls_ == nullptr) {
    ::send(socket_.get(), &kBeat, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return;
  }
  try {
    beat_pending_ = tls_->write({&kBeat, 1}) == 0;
  } catch (const StreamEnd&) {
    beat_pending_ = false;
  }
}

std::string Stream::address() const {
  SocketAddress other;
  if (getpeername(socket_.get(), other.get(), &other.size) != 0) return "a caller that has gone";
  return to_string(Address{numeric(other), port_of(other)});
}

std::unique_ptr<Stream> open_stream(const std::string& address, const Tls* tls, Clock::time_point deadline) {
  const Address place = parse_address(address);
  const Resolved resolved = resolve(place.host, place.port);
  if (resolved.addresses.empty())
    throw StreamEnd(ErrorKind::PeerLost,
                    fmt::format("host '{}' cannot be resolved: {}", place.host, resolved.trouble));
  std::string obstacle;
  for (const SocketAddress& candidate : resolved.addresses) {
    Connected connected = connect_within(candidate, until(deadline));
    if (connected.error == 0) {
      // Resets the connection when it is closed, so that the other end knows at once, even if it has not read
      // all that was sent before.
      const linger reset{1, 0};
      setsockopt(connected.socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      auto stream = std::make_unique<Stream>(std::move(connected.socket));
      if (tls != nullptr) stream->begin_tls(*tls, place.host, {.deadline = deadline});
      return stream;
    }
    obstacle = fmt::format("connecting to {}: {}", numeric(candidate), errno_text(connected.error));
  }
  throw StreamEnd(ErrorKind::PeerLost, obstacle);
}

}  // namespace tutti::net
