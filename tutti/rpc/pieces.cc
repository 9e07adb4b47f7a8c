#include "tutti/rpc/pieces.h"

#include <limits>

#include "tutti/base/error.h"
#include "tutti/rpc/arena_head.h"

namespace tutti::rpc {
namespace {

constexpr size_t kPieceAlignment = 64;

}  // namespace

Room room_for(std::span<const PieceHeader> pieces, const Wire::Allocate& allocate) {
  // Beyond this size, which no machine has, rounding could overflow.
  constexpr uint64_t kBeyond = uint64_t{1} << 62;
  if (following_bytes(pieces) > kBeyond)
    fail(ErrorKind::Overloaded, "a message of {} bytes is larger than the memory of any machine",
         following_bytes(pieces));
  size_t size = 0;
  for (const PieceHeader& piece : pieces) size += piece.follows() ? round_to(piece.size, kPieceAlignment) : 0;
  Room room;
  if (size > 0) room.memory = allocate(size);
  std::byte* next = room.memory.get();
  for (const PieceHeader& piece : pieces) {
    const size_t bytes = piece.follows() ? piece.size : 0;
    room.places.emplace_back(next, bytes);
    next += round_to(bytes, kPieceAlignment);
  }
  return room;
}

}  // namespace tutti::rpc
