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

// The pieces of a request of which some are still on their way.
class Incoming {
 public:
  virtual ~Incoming() = default;
  // Returns the number of pieces that have not been taken.
  virtual size_t left() const = 0;
  // Returns the size of the next piece.
  virtual size_t next_size() const = 0;
  // Waits for the next piece. Throws PeerLost if the caller has gone.
  virtual Piece take_piece() = 0;
};

// A JSON head and any number of byte pieces, which are copied as rarely as possible.
struct Message {
  Json head = Json::object();
  std::vector<Piece> pieces = {};
  // In a request, for the service: where the caller wants the pieces of the answer, for destinations in its
  // arena that are mapped here; else empty. A service may write them there and return these bytes as pieces.
  // Their content after a failure is undefined.
  std::vector<std::span<std::byte>> into = {};
  // In a request, for a service that takes its pieces as they arrive: these, in place of `pieces`; else null.
  Incoming* incoming = nullptr;
};

}  // namespace tutti::rpc
