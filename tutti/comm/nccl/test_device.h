#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/transport/rendezvous.h"

namespace tutti::comm::testing {

// Runs the code that moves tensors between GPUs over Gloo, with CPU tensors instead, so that the code around
// NCCL can be tested without a GPU. Throws Unimplemented if the build has no Gloo.
std::unique_ptr<OnDevice> device_over_gloo(std::shared_ptr<Rendezvous> board, int rank, int world,
                                           std::chrono::milliseconds timeout);

// Returns true if the build has Gloo.
bool device_built();

// Like the functions of the same name in test_ranks.h, but they also support the backend "device": a device
// over Gloo next to the transport "plain".
namespace with_device {

inline std::vector<std::string> errors_of_ranks(const std::string& backend, int world,
                                                std::chrono::milliseconds timeout,
                                                const std::function<void(Communicator&)>& body) {
  if (backend != "device") return testing::errors_of_ranks(backend, world, timeout, body);
  const MakeTransport make = make_transports("plain", world, timeout);
  const auto board = std::make_shared<LocalRendezvous>();
  return testing::errors_of_ranks(
      world,
      [&](int rank) {
        return std::make_unique<Collectives>(make(rank), timeout, nullptr,
                                             device_over_gloo(board, rank, world, timeout));
      },
      body);
}

inline void with_ranks(const std::string& backend, int world,
                       const std::function<void(Communicator&)>& body) {
  const auto errors = errors_of_ranks(backend, world, std::chrono::seconds(60), body);
  for (int rank = 0; rank < world; ++rank)
    EXPECT_EQ(errors[static_cast<size_t>(rank)], "") << "rank " << rank;
}

// Returns the backends for tests of code that uses communicators.
inline std::vector<std::string> backends() {
  std::vector<std::string> backends = {"inproc", "plain", "shm"};
  if (device_built()) backends.emplace_back("device");
  return backends;
}

}  // namespace with_device

}  // namespace tutti::comm::testing
