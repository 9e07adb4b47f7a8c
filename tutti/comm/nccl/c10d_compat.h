#pragma once

// The differences between the c10d of LibTorch 1.13 and of 2.x that matter here.

#include <chrono>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/torch_compat.h"

#if TUTTI_TORCH_AT_LEAST(2, 0)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace tutti::compat {

// The base class of the Gloo and NCCL backends.
#if TUTTI_TORCH_AT_LEAST(2, 0)
using Backend = c10d::Backend;
#else
using Backend = c10d::ProcessGroup;
#endif

// Since 2.4 a TCPStore uses libuv by default, but not every LibTorch is built with libuv.
inline void without_libuv(c10d::TCPStoreOptions& options) {
#if TUTTI_TORCH_AT_LEAST(2, 4)
  options.useLibUV = false;
#else
  static_cast<void>(options);
#endif
}

// Ends a group of operations and returns the work begun since startCoalescing().
inline std::vector<c10::intrusive_ptr<c10d::Work>> end_coalescing(Backend& backend) {
#if TUTTI_TORCH_AT_LEAST(2, 1)
  return {backend.endCoalescing()};
#else
  std::vector<c10::intrusive_ptr<c10d::Work>> all;
  backend.endCoalescing(all);
  return all;
#endif
}

// Returns true if a TCPStore answers on this connection, by asking for its number of keys. Needed before a
// client of version 2.0 or earlier is created: if the other end is no TCPStore, the second connection
// of the client (see below) would end the process. Throws if the connection is closed.
inline bool is_board(int socket, std::chrono::steady_clock::time_point deadline) {
#if TUTTI_TORCH_AT_LEAST(2, 1)
  static_cast<void>(socket);
  static_cast<void>(deadline);
  return true;
#else
  constexpr char kNumberOfKeys = 6;
  constexpr int64_t kMostKeys = int64_t{1} << 32;
  ::send(socket, &kNumberOfKeys, 1, MSG_NOSIGNAL);
  int64_t keys = 0;
  for (size_t done = 0; done < sizeof(keys);) {
    pollfd ready{socket, POLLIN, 0};
    if (::poll(&ready, 1, poll_time(deadline)) <= 0) return false;
    const ssize_t count = ::recv(socket, reinterpret_cast<char*>(&keys) + done, sizeof(keys) - done, 0);
    if (count <= 0) throw std::runtime_error("connection closed");
    done += static_cast<size_t>(count);
  }
  return keys >= 0 && keys < kMostKeys;
#endif
}

// Before 2.1 a client has a second connection, for callbacks, and a thread that reads from it and ends the
// process if the connection is reset. That happens if the server ends before it has accepted the connection.
// Waits until it has accepted it.
inline void await_callback_connection(c10d::TCPStore& store) {
#if TUTTI_TORCH_AT_LEAST(2, 1)
  static_cast<void>(store);
#else
  store.watchKey("nobody sets this", [](const auto&, const auto&) {});
#endif
}

}  // namespace tutti::compat
