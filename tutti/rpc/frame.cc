#include "tutti/rpc/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/check.h"

// The format is little-endian and has no padding:
//   prefix   magic 4, protocol 2, kind 1, error 1, method 4, head 4, pieces 4, into 4, following 8
//   method, head
//   pieces, into: size 8, place 8 each
// The bytes of the pieces that follow come after the frame, in the same order.
namespace tutti::rpc {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

constexpr std::string_view kMagic = "TUTi";
constexpr size_t kPartSize = 16;

template <class Number>
void put(std::string& bytes, Number number) {
  char raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  bytes.append(raw, sizeof number);
}

void put_headers(std::string& bytes, std::span<const PieceHeader> headers) {
  for (const PieceHeader& header : headers) {
    put(bytes, header.size);
    put(bytes, header.place);
  }
}

// Reads numbers and text in sequence from bytes whose size has been checked.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class Number>
  Number number() {
    Number number{};
    std::memcpy(&number, take_bytes(sizeof number).data(), sizeof number);
    return number;
  }
  std::string_view text(size_t size) {
    const auto bytes = take_bytes(size);
    return {reinterpret_cast<const char*>(bytes.data()), size};
  }
  std::vector<PieceHeader> headers(size_t count) {
    std::vector<PieceHeader> headers(count);
    for (PieceHeader& header : headers) {
      header.size = number<uint64_t>();
      header.place = number<uint64_t>();
    }
    return headers;
  }

 private:
  std::span<const std::byte> take_bytes(size_t size) {
    TUTTI_CHECK(size <= left_.size(), "{} of {} bytes", size, left_.size());
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }

  std::span<const std::byte> left_;
};

void check_limit(std::string_view what, uint64_t value, uint64_t limit, ErrorKind kind) {
  if (value > limit) fail(kind, "a frame has a {} of {}; the maximum is {}", what, value, limit);
}

void check_limits(const FramePrefix& prefix, const FrameLimits& limits, ErrorKind kind) {
  check_limit("method", prefix.method, kLongestMethod, kind);
  check_limit("head", prefix.head, limits.head, kind);
  check_limit("number of pieces", prefix.pieces, limits.parts, kind);
  check_limit("number of places", prefix.into, limits.parts, kind);
}

// Clamps a number to the 32 bits that it has in the prefix; values at the maximum fail check_limits().
uint32_t narrow(size_t size) {
  return static_cast<uint32_t>(std::min<size_t>(size, std::numeric_limits<uint32_t>::max()));
}

FramePrefix prefix_of(const Frame& frame) {
  return {frame.kind,
          frame.error,
          narrow(frame.method.size()),
          narrow(frame.head.size()),
          narrow(frame.pieces.size()),
          narrow(frame.into.size()),
          following_bytes(frame.pieces)};
}

bool is_kind(uint8_t kind) {
  return kind >= static_cast<uint8_t>(FrameKind::Challenge) &&
         kind <= static_cast<uint8_t>(FrameKind::Refusal);
}

bool is_error(uint8_t error) { return error <= static_cast<uint8_t>(ErrorKind::Bug); }

}  // namespace

size_t FramePrefix::rest() const {
  return size_t{method} + head + kPartSize * (size_t{pieces} + size_t{into});
}

uint64_t following_bytes(std::span<const PieceHeader> pieces) {
  uint64_t sum = 0;
  for (const PieceHeader& piece : pieces) {
    if (!piece.follows()) continue;
    if (piece.size > std::numeric_limits<uint64_t>::max() - sum)
      fail(ErrorKind::DataLoss, "the pieces of a frame have more than 2^64 bytes");
    sum += piece.size;
  }
  return sum;
}

std::string encode(const Frame& frame) {
  const FramePrefix prefix = prefix_of(frame);
  check_limits(prefix, {}, ErrorKind::InvalidArgument);
  std::string bytes;
  bytes.reserve(kPrefixSize + prefix.rest());
  bytes += kMagic;
  put(bytes, kProtocol);
  put(bytes, static_cast<uint8_t>(frame.kind));
  put(bytes, static_cast<uint8_t>(frame.error));
  put(bytes, prefix.method);
  put(bytes, prefix.head);
  put(bytes, prefix.pieces);
  put(bytes, prefix.into);
  put(bytes, prefix.following);
  bytes += frame.method;
  bytes += frame.head;
  put_headers(bytes, frame.pieces);
  put_headers(bytes, frame.into);
  return bytes;
}

FramePrefix decode_prefix(std::span<const std::byte> bytes, const FrameLimits& limits) {
  TUTTI_CHECK(bytes.size() == kPrefixSize, "{} bytes", bytes.size());
  Taker taker(bytes);
  if (taker.text(kMagic.size()) != kMagic)
    fail(ErrorKind::DataLoss, "the received bytes are not a frame of Tutti");
  const auto protocol = taker.number<uint16_t>();
  if (protocol != kProtocol)
    fail(ErrorKind::InvalidArgument,
         "the frame has protocol version {}, but this task has version {}: run the same version of Tutti "
         "everywhere",
         protocol, kProtocol);
  const auto kind = taker.number<uint8_t>();
  const auto error = taker.number<uint8_t>();
  if (!is_kind(kind) || !is_error(error))
    fail(ErrorKind::DataLoss, "received a frame of unknown kind {}/{}", kind, error);
  FramePrefix prefix{};
  prefix.kind = static_cast<FrameKind>(kind);
  prefix.error = static_cast<ErrorKind>(error);
  prefix.method = taker.number<uint32_t>();
  prefix.head = taker.number<uint32_t>();
  prefix.pieces = taker.number<uint32_t>();
  prefix.into = taker.number<uint32_t>();
  prefix.following = taker.number<uint64_t>();
  check_limits(prefix, limits, ErrorKind::DataLoss);
  return prefix;
}

Frame decode_rest(const FramePrefix& prefix, std::span<const std::byte> bytes) {
  TUTTI_CHECK(bytes.size() == prefix.rest(), "{} bytes", bytes.size());
  Taker taker(bytes);
  Frame frame;
  frame.kind = prefix.kind;
  frame.error = prefix.error;
  frame.method = taker.text(prefix.method);
  frame.head = taker.text(prefix.head);
  frame.pieces = taker.headers(prefix.pieces);
  frame.into = taker.headers(prefix.into);
  if (following_bytes(frame.pieces) != prefix.following)
    fail(ErrorKind::DataLoss, "a frame announces {} bytes, but its pieces have {}", prefix.following,
         following_bytes(frame.pieces));
  return frame;
}

Json decode_json(std::string_view text) {
  return parse_json(text, "the head of a frame", ErrorKind::DataLoss);
}

std::string encode_json(const Json& json) {
  // Text that is not UTF-8, such as a path, must not make the message fail.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti::rpc
