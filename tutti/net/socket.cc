#include "tutti/net/socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <utility>

#include "tutti/net/records.h"

namespace tutti::net {
namespace {

// Smaller parts of a message are encrypted together: every record of TLS costs a system call.
constexpr size_t kRecord = size_t{16} << 10;
// Parts that are given to one system call.
constexpr size_t kParts = 64;

size_t moved_by(ssize_t result) {
  if (result >= 0) return static_cast<size_t>(result);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  const bool closed = errno == ECONNRESET || errno == EPIPE;
  throw StreamEnd(ErrorKind::PeerLost, closed ? kClosed : errno_text(errno));
}

struct Vector {
  std::array<iovec, kParts> buffers;
  msghdr message{};

  template <class Range>
  explicit Vector(const Range& parts) {
    message.msg_iov = buffers.data();
    for (const auto& part : parts.first(std::min(parts.size(), kParts)))
      buffers[message.msg_iovlen++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
};

size_t encrypt(TlsSession& session, std::span<const ConstBytes> parts) {
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

struct Socket::Secured {
  std::mutex mutex;  // for all uses of `session`
  TlsSession session;
  bool connects;
};

void Socket::Deleter::operator()(Secured* secured) const { delete secured; }
void Socket::Deleter::operator()(Records* records) const { delete records; }

size_t receive_plain(int socket, std::span<const Bytes> places) {
  Vector vector(places);
  const ssize_t received = ::recvmsg(socket, &vector.message, MSG_DONTWAIT);
  if (received == 0) throw StreamEnd(ErrorKind::PeerLost, kClosed);
  return moved_by(received);
}

size_t send_plain(int socket, std::span<const ConstBytes> parts) {
  Vector vector(parts);
  return moved_by(::sendmsg(socket, &vector.message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

Socket::Socket(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {
  const int on = 1;
  setsockopt(descriptor_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Socket::begin_tls(const Tls& tls, const std::string& host) {
  secured_.reset(new Secured{.mutex = {}, .session = TlsSession(tls, descriptor_.get()), .connects = true});
  if (!host.empty()) secured_->session.expect_host(host);
}

void Socket::accept_tls(const Tls& tls) {
  secured_.reset(new Secured{.mutex = {}, .session = TlsSession(tls, descriptor_.get()), .connects = false});
}

bool Socket::shake_hands() {
  const std::lock_guard lock(secured_->mutex);
  return secured_->connects ? secured_->session.connect() : secured_->session.accept();
}

void Socket::begin_records(ConstBytes received) { records_.reset(new Records(descriptor_.get(), received)); }

size_t Socket::receive(std::span<const Bytes> places) {
  if (records_ != nullptr) return records_->receive(places);
  if (secured_ == nullptr) return receive_plain(descriptor_.get(), places);
  const std::lock_guard lock(secured_->mutex);
  size_t total = 0;
  for (const Bytes place : places) {
    for (size_t done = 0; done < place.size();) {
      size_t received = 0;
      try {
        received = secured_->session.read(place.subspan(done));
      } catch (const StreamEnd&) {
        if (total == 0) throw;  // otherwise, the next call does
      }
      if (received == 0) return total;
      done += received;
      total += received;
    }
  }
  return total;
}

size_t Socket::send(std::span<const ConstBytes> parts) {
  if (records_ != nullptr) return records_->send(parts);
  if (secured_ == nullptr) return send_plain(descriptor_.get(), parts);
  const std::lock_guard lock(secured_->mutex);
  return encrypt(secured_->session, parts);
}

bool Socket::has_pending() const {
  if (records_ != nullptr) return records_->has_pending();
  if (secured_ == nullptr) return false;
  const std::lock_guard lock(secured_->mutex);
  return secured_->session.has_pending();
}

bool Socket::wants_write() const {
  if (secured_ == nullptr) return false;
  const std::lock_guard lock(secured_->mutex);
  return secured_->session.wants_write();
}

}  // namespace tutti::net
