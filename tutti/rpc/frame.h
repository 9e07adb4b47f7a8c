#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::rpc {

// Incremented by every change that makes two versions incompatible.
inline constexpr uint16_t kProtocol = 4;

// The purpose of a connection by default: calls of a Service.
inline constexpr const char* kCalls = "calls";

enum class FrameKind : uint8_t {
  Challenge = 1,  // from the host: its nonce
  Proof = 2,      // from the caller: its nonce, proof and hello
  Welcome = 3,    // from the host: its proof
  Request = 4,
  Answer = 5,
  Failure = 6,  // an error instead of an answer
  Refusal = 7,  // an error, after which the host closes the connection
};

// The size and the location of a piece's bytes.
struct PieceHeader {
  static constexpr uint64_t kFollows = ~uint64_t{0};

  uint64_t size = 0;
  uint64_t place = kFollows;  // kFollows: after the frame; else the offset in the caller's arena

  bool follows() const { return place == kFollows; }
};

// A message without the bytes of its pieces.
struct Frame {
  FrameKind kind = FrameKind::Request;
  ErrorKind error = ErrorKind::Bug;  // of a Failure or a Refusal
  std::string method;                // of a Request
  std::string head = "{}";           // JSON
  std::vector<PieceHeader> pieces;
  std::vector<PieceHeader> into;  // where the caller wants the pieces of the answer; may be empty
};

// Limits on the size of a received frame.
struct FrameLimits {
  uint32_t head = uint32_t{16} << 20;
  uint32_t parts = uint32_t{1} << 20;
};
inline constexpr uint32_t kLongestMethod = 256;

// The size of the fixed-size prefix of a frame.
inline constexpr size_t kPrefixSize = 32;

struct FramePrefix {
  FrameKind kind;
  ErrorKind error;
  uint32_t method;     // bytes
  uint32_t head;       // bytes
  uint32_t pieces;     // number
  uint32_t into;       // number
  uint64_t following;  // total size of the pieces that follow the frame

  // Returns the size of what is between the prefix and the pieces.
  size_t rest() const;
};

// Returns the bytes of a frame. Throws InvalidArgument beyond the default limits.
std::string encode(const Frame& frame);
// Decode untrusted bytes and check them against the limits. Throw DataLoss if they are malformed.
FramePrefix decode_prefix(std::span<const std::byte> bytes, const FrameLimits& limits);
Frame decode_rest(const FramePrefix& prefix, std::span<const std::byte> bytes);

// Parses JSON; throws DataLoss if the text is invalid.
Json decode_json(std::string_view text);
std::string encode_json(const Json& json);

// Returns the total size of the pieces that follow a frame. Throws DataLoss if the sum overflows.
uint64_t following_bytes(std::span<const PieceHeader> pieces);

}  // namespace tutti::rpc
