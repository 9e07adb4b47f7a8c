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
  // Of a request, as a service sees it: where the pieces of the answer are wanted, for those where the caller
  // has said so and its memory is seen from here; else empty. A service may write them there itself, and
  // answer with these bytes. What is there after a failure is not defined.
  std::vector<std::span<std::byte>> into = {};
};

}  // namespace tutti::rpc
