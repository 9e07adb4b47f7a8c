#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/net/socket.h"
#include "tutti/net/tls.h"

// Connections between tasks, over TCP, encrypted or not.
namespace tutti::net {

using Clock = std::chrono::steady_clock;

// How long an operation may wait: a deadline for all of it, and a limit for each wait without progress.
struct TimeLimits {
  Clock::time_point deadline = Clock::time_point::max();
  Clock::duration each = Clock::duration::max();
  // Called ten times a second during a wait; ends it by an exception. May be empty.
  std::function<void()> look = {};

  // Returns the end of a wait that begins now.
  Clock::time_point next() const {
    const auto now = Clock::now();
    return deadline - now > each ? now + each : deadline;
  }
};

// The other end is lost if nothing has been heard from it for this long, unless a server was told otherwise.
inline constexpr std::chrono::milliseconds kSilence{20000};
inline constexpr std::chrono::milliseconds kAnySilence = std::chrono::hours(24 * 365);
inline constexpr std::chrono::milliseconds kBetweenBeats{1000};

// One end of a connection, which carries messages in both directions. Used by one thread at a time, except
// for hang_up() and beat().
//
// Between its messages, each end sends a beat once a second (heart.h), a single zero byte, so that the other
// end can tell a task that computes from one that is stopped, and from a machine that is gone. A message
// therefore must not begin with a zero byte.
//
// Every wait ends with a Timeout after its limits, and with a StreamEnd if the connection is lost.
class Stream {
 public:
  // Takes a connected, non-blocking TCP socket. `silence` is how long the other end may be silent.
  explicit Stream(FileDescriptor socket, std::chrono::milliseconds silence = kSilence);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Encrypts the connection from now on. The caller names the host that its certificate has to be for. A
  // listener waits for the caller's first byte, and returns false, without having read it, if the caller does
  // not use TLS.
  void begin_tls(const Tls& tls, const std::string& host, const TimeLimits& time);
  bool accept_tls(const Tls& tls, const TimeLimits& time);
  bool is_encrypted() const { return socket_.is_encrypted(); }
  // From now on, both ends send checksums with their messages. To be called between two messages.
  void begin_checksums();
  // Returns true if both ends have the same address, so that no network moves the bytes.
  bool is_within_host() const;

  // Sends a message. Returns false, with the message incomplete, if the other end has sent something
  // meanwhile that is not a beat: it may refuse the message.
  bool write(std::span<const ConstBytes> parts, const TimeLimits& time);

  // Waits for the first byte of the next message, then receives its bytes, and ends it.
  void await_message(const TimeLimits& time);
  void read(Bytes bytes, const TimeLimits& time);
  void end_message();
  // Returns true if bytes have been received that belong to no message yet. Does not block.
  bool has_more() const;
  // Returns true if bytes have been received that were not read yet, of this message or another one.
  bool has_unread() const { return ahead_begin_ < ahead_end_; }

  // Returns true if the connection has ended. Does not block. May be called during a message.
  bool ended();
  // Returns true if the system has not delivered all that was sent yet. From any thread.
  bool has_unsent() const;
  // Ends the connection. From any thread; waits of the other threads then fail.
  void hang_up();
  // Lets waits for messages fail from now on, although this end can still send. From any thread.
  void stop_receiving();
  // Sends nothing more, and waits at most until the deadline for the other end to close the connection: what
  // was sent would be lost if the connection were closed while the other end is still sending.
  void close_gently(Clock::time_point deadline);
  // Sends a beat, unless a message is being sent. From any thread. Does not block.
  void beat();

  // Returns the other end's address, for messages.
  std::string address() const;
  // Hands over the connection, on which nothing may have come beyond the last message. Nothing else may be
  // called afterwards.
  Socket release();

 private:
  enum class Direction { In, Out };

  size_t receive_some(Bytes bytes);
  size_t send_some(std::span<const ConstBytes> parts);
  void fill();
  bool hears_something();
  bool is_silent();
  void wait(Direction direction, const TimeLimits& time, Clock::time_point until);
  void shake_hands(const TimeLimits& time);

  Socket socket_;
  const std::chrono::milliseconds silence_;
  // Received bytes that were not read yet.
  std::vector<std::byte> ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  bool in_message_ = false;
  std::atomic<bool> receives_ = true;
  Clock::duration quiet_{};     // the time since the last byte was received, as far as it was watched
  Clock::time_point looked_{};  // when that was last counted

  std::mutex mutex_;           // for sending
  bool sending_ = false;       // guarded by mutex_: a message is incomplete
  bool beat_pending_ = false;  // guarded by mutex_: not all of a beat has been sent
};

// The name that a certificate must have: the name of the host in the address, or any name.
enum class CertificateName { Host, Any };

// Makes one attempt to connect to HOST:PORT. With `tls`, encrypts the connection. Throws a StreamEnd with the
// obstacle: PeerLost if another attempt may succeed, else InvalidArgument.
std::unique_ptr<Stream> open_stream(const std::string& address, const Tls* tls, Clock::time_point deadline,
                                    CertificateName name = CertificateName::Host,
                                    std::chrono::milliseconds silence = kSilence);

}  // namespace tutti::net
