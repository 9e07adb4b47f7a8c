#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "tutti/rpc/frame.h"
#include "tutti/rpc/stream.h"

namespace tutti::rpc {

// How long to wait: until a moment for all, and for so long for every chunk.
struct Patience {
  Clock::time_point deadline = Clock::time_point::max();
  Clock::duration each = Clock::duration::max();

  Clock::time_point next() const;
};

// Frames over a stream, and the bytes that follow them, cut into chunks. What is not as it should be is a
// DataLoss. For one thread at a time.
class Wire {
 public:
  explicit Wire(Stream& stream) : stream_(stream) {}

  // The frame and the pieces that follow it. They are free again when it returns.
  void send(const Frame& frame, std::span<const ConstBytes> following, const Patience& patience) {
    send(encode(frame), following, patience);
  }
  // The same of an encoded frame.
  void send(std::string_view frame, std::span<const ConstBytes> following, const Patience& patience);

  // Memory for what is long in a frame.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
  // Waits for its beginning until `begin`; what is a Timeout then may be tried again.
  Frame receive(const FrameLimits& limits, const Allocate& allocate, Clock::time_point begin,
                const Patience& patience);
  // The next of the bytes that follow it.
  void receive(Bytes bytes, const Patience& patience);
  // All of them have been received: nothing else may have come with them.
  void finish();

 private:
  void next_chunk(Clock::time_point deadline);

  Stream& stream_;
  Chunk chunk_;          // what came last,
  size_t part_ = 0;      // and up to where it has been received
  size_t received_ = 0;  // of this part
};

}  // namespace tutti::rpc
