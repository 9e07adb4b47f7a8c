#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"

namespace tutti::rpc {

// Bytes, and who keeps them alive.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner = {};  // empty: who sends it, until the call has returned
};

// A few words, and bytes of any number and size, which are copied as seldom as can be.
struct Message {
  Json head = Json::object();
  std::vector<Piece> pieces = {};
};

}  // namespace tutti::rpc
