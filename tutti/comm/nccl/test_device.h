#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::comm::testing {

// The code that moves tensors between GPUs, over Gloo, with the CPU's tensors in their place: what NCCL does
// with it needs no GPU to be tested. Without Gloo at build time: Unimplemented.
std::unique_ptr<OnDevice> device_over_gloo(std::shared_ptr<Rendezvous> table, int rank, int world,
                                           std::chrono::milliseconds timeout);

// As their namesakes in test_ranks.h, which know no "device": beside ranks that are threads and show one
// another no memory.
namespace with_device {

inline std::vector<std::string> errors_of_ranks(const std::string& backend, int world,
                                                std::chrono::milliseconds timeout,
                                                const std::function<void(Communicator&)>& body) {
  if (backend != "device") return testing::errors_of_ranks(backend, world, timeout, body);
  const MakeTransport make = make_transports("plain", world, timeout);
  const auto table = local_rendezvous();
  return testing::errors_of_ranks(
      world,
      [&](int rank) {
        return std::make_unique<Collectives>(make(rank), timeout, nullptr,
                                             device_over_gloo(table, rank, world, timeout));
      },
      body);
}

inline void with_ranks(const std::string& backend, int world,
                       const std::function<void(Communicator&)>& body) {
  const auto errors = errors_of_ranks(backend, world, std::chrono::seconds(60), body);
  for (int rank = 0; rank < world; ++rank)
    EXPECT_EQ(errors[static_cast<size_t>(rank)], "") << "rank " << rank;
}

// For tests of what is made of communicators.
inline std::vector<std::string> backends() {
  std::vector<std::string> backends = {"inproc", "plain", "shm"};
  if (gloo_built()) backends.emplace_back("device");
  return backends;
}

}  // namespace with_device

}  // namespace tutti::comm::testing
