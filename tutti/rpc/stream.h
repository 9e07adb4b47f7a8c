#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/rpc/credentials.h"

// The interface to the network library: connections that carry chunks of bytes in both directions. Only grpc/
// depends on a particular library.
namespace tutti::rpc {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Thrown when a stream was ended, or was lost.
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

// A received chunk of bytes, in parts.
struct Chunk {
  std::vector<ConstBytes> parts;
  std::shared_ptr<const void> owner;
};

// The maximum size of a chunk; the other end refuses larger ones.
inline constexpr size_t kLargestChunk = size_t{4} << 20;

// One end of a connection. Used by one thread at a time. Throws Timeout after the deadline: then a read or a
// flush may be repeated, but after a write the stream can only be destroyed. Throws StreamEnd when the other
// end has ended it.
class Stream {
 public:
  // Closes the stream and releases all bytes given to write().
  virtual ~Stream() = default;

  // Returns true once write() will not wait, or false at the deadline.
  virtual bool await_room(Clock::time_point deadline) = 0;
  // Sends the parts as one chunk. They must stay valid until flush() has returned.
  virtual void write(std::span<const ConstBytes> parts, Clock::time_point deadline) = 0;
  // Returns when everything written has been sent.
  virtual void flush(Clock::time_point deadline) = 0;
  virtual Chunk read(Clock::time_point deadline) = 0;
  // Returns true if the stream has ended. Does not block.
  virtual bool ended() = 0;
};

// The server's end of a stream.
class ServerStream : public Stream {
 public:
  // Returns the caller's address, for messages.
  virtual std::string address() const = 0;
  // Ends the stream and sends the reason to the other end.
  virtual void refuse(const Error& why) = 0;
  // Ends the stream. May be called from any thread; pending reads and writes then fail.
  virtual void hang_up() = 0;
};

// The text of the error if an attempt has had no result by its deadline.
inline constexpr const char* kNothingAnswers = "nothing answers";

// Makes one attempt to connect. Throws a StreamEnd with the obstacle: PeerLost if another attempt may
// succeed, else InvalidArgument.
std::unique_ptr<Stream> open_stream(const std::string& address, const Credentials& credentials,
                                    Clock::time_point deadline);

class Listener {
 public:
  virtual ~Listener() = default;
  virtual int port() const = 0;
  // Returns the next caller, or null if none came within `timeout` or the listener was closed.
  virtual std::unique_ptr<ServerStream> accept(std::chrono::milliseconds timeout) = 0;
  // Ends all streams, also pending ones, and returns when they have been destroyed. Accepts no more.
  virtual void close() = 0;
};

// Listens at HOST:PORT. A caller that does not answer for about `silence` is lost (HostOptions). Throws
// Overloaded if the port is in use.
std::unique_ptr<Listener> listen(const std::string& address, const Credentials& credentials,
                                 std::chrono::milliseconds silence);

}  // namespace tutti::rpc
