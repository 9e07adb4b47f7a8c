#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"

namespace tutti::rpc {

// Bytes and the owner of their memory.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner = {};  // empty: the sender, until the call returns
};

// A JSON head and any number of byte pieces, which are copied as rarely as possible.
struct Message {
  Json head = Json::object();
  std::vector<Piece> pieces = {};
  // In a request, for the service: where the caller wants the pieces of the answer, for destinations in its
  // arena that are mapped here; else empty. A service may write them there and return these bytes as pieces.
  // Their content after a failure is undefined.
  std::vector<std::span<std::byte>> into = {};
};

}  // namespace tutti::rpc
