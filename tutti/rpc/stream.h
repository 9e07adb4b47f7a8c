#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/rpc/credentials.h"

// What Tutti needs of a network library: connections that carry chunks of bytes both ways. Only grpc/ knows
// which one it is.
namespace tutti::rpc {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// A stream that ended by itself or by the other end's doing.
class StreamEnd : public Error {
 public:
  // Whether the text is what the other end said.
  enum class Said { ByIt, ByNobody };
  StreamEnd(ErrorKind kind, const std::string& text, Said said = Said::ByNobody)
      : Error(kind, text), said_(said) {}
  bool told() const { return said_ == Said::ByIt; }

 private:
  Said said_;
};

// Bytes that came in one go, in parts.
struct Chunk {
  std::vector<ConstBytes> parts;
  std::shared_ptr<const void> owner;
};

// The most that one chunk holds; the other end takes no larger one.
inline constexpr size_t kLargestChunk = size_t{4} << 20;

// A connection, as one of its ends sees it. For one thread at a time. What does not happen until the deadline
// is a Timeout, after which a read may be tried again, but of a write only the end of the stream is of use;
// when the other end has ended it, a StreamEnd.
class Stream {
 public:
  // Ends it. What was lent to it is free after that.
  virtual ~Stream() = default;

  // Sends them as one chunk. They are lent to the stream until flush() has returned.
  virtual void write(std::span<const ConstBytes> parts, Clock::time_point deadline) = 0;
  // Everything written has left.
  virtual void flush(Clock::time_point deadline) = 0;
  virtual Chunk read(Clock::time_point deadline) = 0;
  // Whether it has ended, without waiting.
  virtual bool ended() = 0;
};

// A server's end of it.
class ServerStream : public Stream {
 public:
  // Where the caller is, for people.
  virtual std::string address() const = 0;
  // Ends it, and tells the other end why.
  virtual void refuse(const Error& why) = 0;
};

// What there is to say of an attempt that has come to nothing by its deadline.
inline constexpr const char* kNothingAnswers = "nothing answers";

// One attempt. A StreamEnd says what was in the way: as a PeerLost if another attempt may do better, else as
// an InvalidArgument.
std::unique_ptr<Stream> open_stream(const std::string& address, const Credentials& credentials,
                                    Clock::time_point deadline);

class Listener {
 public:
  virtual ~Listener() = default;
  virtual int port() const = 0;
  // The next caller, or null when none came for so long, or it has been closed.
  virtual std::unique_ptr<ServerStream> accept(std::chrono::milliseconds patience) = 0;
  // Ends all streams, also those waited for, and returns when they have been destroyed. Accepts no more.
  virtual void close() = 0;
};

// At HOST:PORT. A port in use is Overloaded.
std::unique_ptr<Listener> listen(const std::string& address, const Credentials& credentials);

}  // namespace tutti::rpc
