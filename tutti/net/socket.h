#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/net/tls.h"

namespace tutti::net {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Thrown when a connection was ended by the other end, or was lost.
class StreamEnd : public Error {
 public:
  // Tells whether the text was sent by the other end.
  enum class Said { ByIt, ByNobody };
  StreamEnd(ErrorKind kind, const std::string& text, Said said = Said::ByNobody)
      : Error(kind, text), said_(said) {}
  bool told() const { return said_ == Said::ByIt; }

 private:
  Said said_;
};

// The text of a StreamEnd if there is no other reason.
inline constexpr const char* kClosed = "the other end has closed the connection";

class Records;

// Move some bytes over a non-blocking socket as they are; 0 if it is not ready.
size_t receive_plain(int socket, std::span<const Bytes> places);
size_t send_plain(int socket, std::span<const ConstBytes> parts);

// A connected, non-blocking TCP socket, over which bytes move encrypted, with checksums, or as they are. Once
// it is ready, one thread may send while another one receives. Every operation throws a StreamEnd if the
// connection has ended, or if bytes were changed on their way and that is noticed.
class Socket {
 public:
  Socket() = default;  // none
  explicit Socket(FileDescriptor descriptor);

  // For poll(2); -1 if there is none.
  int descriptor() const { return descriptor_.get(); }

  // Begin to encrypt the connection, as a caller or as a listener. The caller names the host that the
  // listener's certificate has to be for; "" means any.
  void begin_tls(const Tls& tls, const std::string& host);
  void accept_tls(const Tls& tls);
  // Makes a step of the handshake; true: it is complete.
  bool shake_hands();
  bool is_encrypted() const { return secured_ != nullptr; }
  // From now on, both ends send checksums (Records). `received` has come over this socket already.
  void begin_records(ConstBytes received);
  // Returns true if a send that has moved no bytes, or too few, has to be followed by one that begins with
  // the next of the same bytes. With checksums, the same holds for places.
  bool keeps_unsent() const { return secured_ != nullptr || records_ != nullptr; }

  // Move some bytes; 0 if the socket is not ready.
  size_t receive(std::span<const Bytes> places);
  size_t send(std::span<const ConstBytes> parts);

  // These states are unknown to poll(2): received bytes are waiting inside TLS, or with their checksums; the
  // last operation of an encrypted connection can go on only when the socket can be written to.
  bool has_pending() const;
  bool wants_write() const;

 private:
  struct Secured;
  // Deletes what is an incomplete type here.
  struct Deleter {
    void operator()(Secured* secured) const;
    void operator()(Records* records) const;
  };

  FileDescriptor descriptor_;
  std::unique_ptr<Secured, Deleter> secured_;
  std::unique_ptr<Records, Deleter> records_;
};

}  // namespace tutti::net
