#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/net/socket.h"
#include "tutti/transport/transport.h"

namespace tutti::comm::tcp {

// Thrown if a connection was closed or has failed; the text is the system's reason, or empty.
struct Closed : std::runtime_error {
  Closed(int rank, const std::string& why) : std::runtime_error(why), peer(rank) {}
  int peer;
};

// Thrown if the bytes that have come from a rank are not those that it has sent; the text says more.
struct Changed : std::runtime_error {
  Changed(int rank, const std::string& how) : std::runtime_error(how), peer(rank) {}
  int peer;
};

// The bytes that move over a connection in one direction. Some may not be there yet, or have no room yet.
struct Flow {
  enum class Way { Out, In };

  Way way;
  net::Socket* socket;
  int peer;
  uint64_t size;
  // Returns where the bytes from `offset` on are, as far as they lie together and may be moved now.
  std::function<Bytes(uint64_t offset)> at;
  uint64_t done = 0;
  bool blocked = false;  // the connection could not take or give more when it was last tried

  bool is_done() const { return done == size; }
};

// Moves what can be moved of a flow at once. Returns false if that was nothing. Throws Closed and Changed.
bool move_some(Flow& flow);

// Moves all bytes of the flows, each as soon as possible, and calls on_moved(flow) whenever some bytes of a
// flow have moved. `on_moved` may thereby make more bytes of other flows movable. Throws Closed and Changed.
// A deadline that has passed counts as closed.
void move_all(std::span<Flow> flows, const std::function<void(const Flow& flow)>& on_moved,
              std::chrono::steady_clock::time_point deadline);

}  // namespace tutti::comm::tcp
