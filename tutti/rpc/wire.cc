#include "tutti/rpc/wire.h"

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/rpc/arena.h"

namespace tutti::rpc {
namespace {

// Longer frames take memory from the budget.
constexpr size_t kShort = size_t{16} << 10;
constexpr size_t kPieceAlignment = 64;
constexpr uint32_t kLongestRefusal = uint32_t{64} << 10;
// The time for sending the reason of a refusal.
constexpr std::chrono::seconds kLastWords{5};

std::shared_ptr<std::byte> from_heap(size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

}  // namespace

Frame refusal(const Error& why) {
  Frame frame;
  frame.kind = FrameKind::Refusal;
  frame.error = why.kind();
  frame.head = encode_json(why.what());
  return frame;
}

void Wire::send(std::string_view frame, std::span<const ConstBytes> following, const TimeLimits& time) {
  if (refused_) throw *refused_;
  std::vector<ConstBytes> parts = {as_bytes(frame)};
  parts.insert(parts.end(), following.begin(), following.end());
  if (stream_.write(parts, time)) return;
  receive({.head = kLongestRefusal, .parts = 0}, {}, time, time);
  fail(ErrorKind::DataLoss, "received a message before the last one was sent");
}

void Wire::refuse(const Error& why) {
  const auto deadline = Clock::now() + kLastWords;
  try {
    send(refusal(why), {}, {.deadline = deadline});
  } catch (const Error&) {
    // The other end has gone, or does not read.
  }
  stream_.close_gently(deadline);
}

Frame Wire::receive(const FrameLimits& limits, const Allocate& allocate, const TimeLimits& begin,
                    const TimeLimits& time) {
  if (refused_) throw *refused_;
  stream_.await_message(begin);
  std::array<std::byte, kPrefixSize> prefix_bytes{};
  receive(prefix_bytes, time);
  const FramePrefix prefix = decode_prefix(prefix_bytes, limits);
  std::array<std::byte, kShort> here;
  std::shared_ptr<std::byte> there;
  if (prefix.rest() > kShort) there = allocate ? allocate(prefix.rest()) : from_heap(prefix.rest());
  const Bytes rest(there != nullptr ? there.get() : here.data(), prefix.rest());
  receive(rest, time);
  Frame frame = decode_rest(prefix, rest);
  if (frame.kind != FrameKind::Refusal) return frame;
  const Json why = decode_json(frame.head);
  if (!why.is_string()) fail(ErrorKind::DataLoss, "received a refusal without a text");
  throw StreamEnd(frame.error, why.get<std::string>(), StreamEnd::Said::ByIt);
}

void Wire::finish() {
  stream_.end_message();
  if (!stream_.has_more()) return;
  const TimeLimits now{.deadline = Clock::now()};
  try {
    receive({.head = kLongestRefusal, .parts = 0}, {}, now, now);
  } catch (const StreamEnd& end) {
    refused_ = end;
    if (end.told()) return;
  } catch (const Error&) {
    // It is not a frame, or not all of one.
  }
  fail(ErrorKind::DataLoss, "received bytes that belong to no message");
}

PieceMemory memory_for(std::span<const PieceHeader> pieces, const Wire::Allocate& allocate) {
  // Beyond this size, which no machine has, rounding could overflow.
  constexpr uint64_t kBeyond = uint64_t{1} << 62;
  if (following_bytes(pieces) > kBeyond)
    fail(ErrorKind::Overloaded, "a message of {} bytes is larger than the memory of any machine",
         following_bytes(pieces));
  size_t size = 0;
  for (const PieceHeader& piece : pieces) size += piece.follows() ? round_to(piece.size, kPieceAlignment) : 0;
  PieceMemory received;
  if (size > 0) received.memory = allocate(size);
  std::byte* next = received.memory.get();
  for (const PieceHeader& piece : pieces) {
    const size_t bytes = piece.follows() ? piece.size : 0;
    received.places.emplace_back(next, bytes);
    next += round_to(bytes, kPieceAlignment);
  }
  return received;
}

}  // namespace tutti::rpc
