#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/inproc/inproc.h"
#include "tutti/comm/rendezvous.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::comm::testing {

// Makes the transport of one rank of a world.
using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;

// For a world of threads of this process. The rendezvous lives as long as the result.
inline MakeTransport make_transports(const std::string& backend, int world, std::chrono::milliseconds timeout) {
  if (backend == "inproc") {
    auto all = std::make_shared<std::vector<std::unique_ptr<Transport>>>(inproc_transports(world, timeout));
    return [all](int rank) { return std::move(all->at(static_cast<size_t>(rank))); };
  }
  const auto table = local_rendezvous();
  return [table, world, timeout](int rank) {
    return shm_transport(table, {rank, world, fmt::format("worker/{}", rank), timeout});
  };
}

// Runs `body` once a rank, each in a thread of its own; returns what each has thrown, "" for nothing.
inline std::vector<std::string> errors_of_ranks(const std::string& backend, int world,
                                                std::chrono::milliseconds timeout,
                                                const std::function<void(Communicator&)>& body) {
  const MakeTransport make = make_transports(backend, world, timeout);
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Collectives comm(make(rank), timeout);
        body(comm);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void with_ranks(const std::string& backend, int world, const std::function<void(Communicator&)>& body) {
  const auto errors = errors_of_ranks(backend, world, std::chrono::seconds(60), body);
  for (int rank = 0; rank < world; ++rank) EXPECT_EQ(errors[static_cast<size_t>(rank)], "") << "rank " << rank;
}

}  // namespace tutti::comm::testing
