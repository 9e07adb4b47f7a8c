#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/rpc/frame.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {

// Memory for received pieces: a place for each piece that follows the frame, an empty one for the others.
struct Room {
  std::vector<Bytes> places;
  std::shared_ptr<std::byte> memory;
};

// Takes one block from `allocate` for all places, each aligned for a tensor.
Room room_for(std::span<const PieceHeader> pieces, const Wire::Allocate& allocate);

}  // namespace tutti::rpc
