#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/net/stream.h"
#include "tutti/rpc/frame.h"

namespace tutti::rpc {

using Bytes = net::Bytes;
using Clock = net::Clock;
using ConstBytes = net::ConstBytes;
using Stream = net::Stream;
using StreamEnd = net::StreamEnd;
using TimeLimits = net::TimeLimits;

// The text with which a host ends the connections that are left when it closes in good order (PeerLost).
inline constexpr const char* kFarewell = "it has closed";

// Returns the frame that ends a connection with an error.
Frame refusal(const Error& why);

// Sends and receives frames and the bytes that follow them over a stream. Malformed data throw DataLoss, and
// a Refusal of the other end a StreamEnd with the kind and the text of its error. Used by one thread at a
// time.
class Wire {
 public:
  explicit Wire(Stream& stream) : stream_(stream) {}

  // Sends the frame and the pieces that follow it. The other end must not send anything meanwhile but a
  // refusal.
  void send(const Frame& frame, std::span<const ConstBytes> following, const TimeLimits& time) {
    send(encode(frame), following, time);
  }
  // Sends an encoded frame.
  void send(std::string_view frame, std::span<const ConstBytes> following, const TimeLimits& time);
  // Ends the stream and sends the reason to the other end, if it still listens.
  void refuse(const Error& why);

  // Allocates memory for a frame that is too long for the stack. Empty: takes it from the heap, if the limits
  // of the frame are small.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
  // Waits within the limits `begin` for the first byte.
  Frame receive(const FrameLimits& limits, const Allocate& allocate, const TimeLimits& begin,
                const TimeLimits& time);
  // Receives the next of the bytes that follow the frame.
  void receive(Bytes bytes, const TimeLimits& time) { stream_.read(bytes, time); }
  // Ends a message after its last piece. Checks that nothing has arrived behind it but a refusal, as that of
  // a host that closes, which ends the next use.
  void finish();

 private:
  Stream& stream_;
  std::optional<StreamEnd> refused_;
};

// Memory for received pieces: a place for each piece that follows the frame, an empty one for the others.
struct PieceMemory {
  std::vector<Bytes> places;
  std::shared_ptr<std::byte> memory;
};

// Takes one block from `allocate` for all places, each aligned for a tensor.
PieceMemory memory_for(std::span<const PieceHeader> pieces, const Wire::Allocate& allocate);

}  // namespace tutti::rpc
