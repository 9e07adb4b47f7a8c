#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "tutti/rpc/frame.h"
#include "tutti/rpc/stream.h"

namespace tutti::rpc {

// How long to wait: a deadline for everything, and a limit for each chunk.
struct TimeLimits {
  Clock::time_point deadline = Clock::time_point::max();
  Clock::duration each = Clock::duration::max();
  // Called ten times a second during a wait; ends it by an exception. May be empty.
  std::function<void()> look = {};

  Clock::time_point next() const;
};

// Sends and receives frames and the bytes that follow them, cut into chunks, over a stream. Malformed data
// throw DataLoss. Used by one thread at a time.
class Wire {
 public:
  explicit Wire(Stream& stream) : stream_(stream) {}

  // Sends the frame and the pieces that follow it, which may be freed when it returns.
  void send(const Frame& frame, std::span<const ConstBytes> following, const TimeLimits& time) {
    const std::string encoded = encode(frame);
    begin_send(encoded, following, time);
    flush(time);
  }
  // Begins to send an encoded frame and the pieces that follow it. All these bytes must stay valid until
  // flush() has returned.
  void begin_send(std::string_view frame, std::span<const ConstBytes> following, const TimeLimits& time);
  void flush(const TimeLimits& time);

  // Allocates memory for a frame that is too long for the stack.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
  // Waits within the limits `begin` for the first chunk.
  Frame receive(const FrameLimits& limits, const Allocate& allocate, const TimeLimits& begin,
                const TimeLimits& time);
  // Receives the next of the bytes that follow the frame.
  void receive(Bytes bytes, const TimeLimits& time);
  // Checks that nothing is left over after the last piece.
  void finish();

 private:
  void next_chunk(const TimeLimits& time);

  Stream& stream_;
  Chunk chunk_;          // the current chunk
  size_t part_ = 0;      // the position in it: the part,
  size_t received_ = 0;  // and the bytes received from this part
};

}  // namespace tutti::rpc
