#pragma once

// What differs between the c10d of LibTorch 1.13 and of 2.x, as far as it is used here.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tutti/base/torch_compat.h"

namespace tutti::compat {

// Before 2.1 a client has a second connection, for callbacks, and a thread that reads from it and ends the
// process if the connection is reset. That is so where the server ends before it has come to accept it.
// Returns when it has.
inline void await_callback_connection(c10d::TCPStore& store) {
#if TUTTI_TORCH_AT_LEAST(2, 1)
  static_cast<void>(store);
#else
  store.watchKey("nobody sets this", [](const auto&, const auto&) {});
#endif
}

}  // namespace tutti::compat
