#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tutti/rpc/frame.h"
#include "tutti/rpc/stream.h"
#include "tutti/rpc/wire.h"

namespace tutti::rpc {

// Where pieces are received: a place for each that follows the frame, an empty one for the others.
struct Room {
  std::vector<Bytes> places;
  std::shared_ptr<std::byte> memory;
};

// All in one block of `allocate`, each aligned as a tensor wants it.
Room room_for(std::span<const Part> pieces, const Wire::Allocate& allocate);

}  // namespace tutti::rpc
