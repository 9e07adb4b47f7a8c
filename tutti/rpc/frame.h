#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::rpc {

// Raised by every change after which two versions do not understand each other.
inline constexpr uint16_t kProtocol = 1;

enum class FrameKind : uint8_t {
  Challenge = 1,  // host: who are you, and can you prove it?
  Proof = 2,      // caller: this is who I am
  Welcome = 3,    // host: and here is my proof
  Request = 4,
  Answer = 5,
  Failure = 6,  // instead of an answer
};

// Where the bytes of a piece are.
struct Part {
  static constexpr uint64_t kFollows = ~uint64_t{0};

  uint64_t size = 0;
  uint64_t place = kFollows;  // behind the frame, or this offset in the caller's arena

  bool follows() const { return place == kFollows; }
};

// All of a message but the bytes of its pieces.
struct Frame {
  FrameKind kind = FrameKind::Request;
  ErrorKind error = ErrorKind::Bug;  // of a failure
  std::string method;                // of a request
  std::string head = "{}";           // JSON
  std::vector<Part> pieces;
  std::vector<Part> into;  // where the caller wants the pieces of the answer, if it says so
};

// How much of it may come.
struct FrameLimits {
  uint32_t head = uint32_t{16} << 20;
  uint32_t parts = uint32_t{1} << 20;
};
inline constexpr uint32_t kLongestMethod = 256;

// The fixed beginning of a frame.
inline constexpr size_t kPrefixSize = 32;

struct FramePrefix {
  FrameKind kind;
  ErrorKind error;
  uint32_t method;     // bytes
  uint32_t head;       // bytes
  uint32_t pieces;     // number
  uint32_t into;       // number
  uint64_t following;  // bytes of all pieces that follow the frame

  // Of what stands between the prefix and the pieces.
  size_t rest() const;
};

// The bytes of a frame. What is beyond the default limits is an InvalidArgument.
std::string encode(const Frame& frame);
// Checked against the limits, and, as everything here, nothing is taken for granted: DataLoss.
FramePrefix decode_prefix(std::span<const std::byte> bytes, const FrameLimits& limits);
Frame decode_rest(const FramePrefix& prefix, std::span<const std::byte> bytes);

// The text as JSON; DataLoss if it is none.
Json decode_json(std::string_view text);
std::string encode_json(const Json& json);

// Bytes of all pieces that follow a frame. DataLoss where they are more than can be counted.
uint64_t following_bytes(std::span<const Part> pieces);

}  // namespace tutti::rpc
