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
#include "tutti/transport/hierarchy/hierarchy.h"
#include "tutti/transport/inproc/inproc.h"
#include "tutti/transport/rendezvous.h"
#include "tutti/transport/shm/shm.h"
#include "tutti/transport/tcp/tcp.h"
#include "tutti/transport/test_messages.h"

namespace tutti::comm::testing {

// Makes the transport of one rank of a world.
using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;

// Returns a pointer that does not own the communicator.
inline std::shared_ptr<Communicator> borrowed(Communicator& comm) {
  return {&comm, [](Communicator*) {}};
}

// Forwards to another transport and hides its additional interfaces.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    inner_->exchange(sends, recvs, operation);
  }
  void send(ConstBytes bytes, int to, const Operation& operation) override {
    inner_->send(bytes, to, operation);
  }
  void recv(Bytes bytes, int from, const Operation& operation) override {
    inner_->recv(bytes, from, operation);
  }
  OperationLabel await_message(int from, const Operation& operation) override {
    return inner_->await_message(from, operation);
  }
  std::optional<OperationLabel> next_message(int from) override { return inner_->next_message(from); }
  bool has_left(int rank) override { return inner_->has_left(rank); }
  void abandon(const std::string& text) override { inner_->abandon(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return inner_->split(ranks, name);
  }

 protected:
  Transport& inner() { return *inner_; }

 private:
  const std::unique_ptr<Transport> inner_;
};

// To test the algorithms for transports that have no additional interfaces.
class PlainTransport final : public ForwardingTransport {
 public:
  // Calls `before` before each exchange.
  explicit PlainTransport(
      std::unique_ptr<Transport> inner, std::function<void()> before = [] {})
      : ForwardingTransport(std::move(inner)), before_(std::move(before)) {}
  std::string name() const override { return "plain"; }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override {
    before_();
    ForwardingTransport::exchange(sends, recvs, operation);
  }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_unique<PlainTransport>(ForwardingTransport::split(ranks, name));
  }

 private:
  const std::function<void()> before_;
};

// Ranks on simulated hosts, one letter per rank: "aabb" means two hosts with two ranks each. They use shared
// memory within a host and TCP between hosts, or only TCP if RankLayout finds no two levels.
inline std::unique_ptr<Transport> transport_on_hosts(const std::string& hosts, int rank,
                                                     const std::shared_ptr<Rendezvous>& board,
                                                     std::chrono::milliseconds timeout) {
  std::vector<std::string> host_of_rank;
  std::vector<std::string> who;
  for (const char host : hosts) {
    host_of_rank.emplace_back(1, host);
    who.push_back(fmt::format("worker/{} on {}", who.size(), host));
  }
  const int world = static_cast<int>(hosts.size());
  auto network =
      tcp_transport(with_prefix(board, "tcp/"),
                    {.rank = rank, .world = world, .who = who, .peer_host = "", .timeout = timeout});
  const auto layout = RankLayout::make(host_of_rank);
  if (!layout || !layout->has_two_levels()) return network;
  const int host = layout->host_of(rank);
  const auto first = who.begin() + layout->first(host);
  auto memory =
      shm_transport(with_prefix(board, fmt::format("{}/", host)), {.rank = layout->local_rank(rank),
                                                                   .world = layout->size(host),
                                                                   .who = {first, first + layout->size(host)},
                                                                   .timeout = timeout});
  return std::make_unique<HierarchyTransport>(std::move(network), std::move(memory), *layout, timeout);
}

// For a world of threads of this process. `backend` is "inproc", "plain", "shm", or one host letter per rank.
// The rendezvous lives as long as the result.
inline MakeTransport make_transports(const std::string& backend, int world,
                                     std::chrono::milliseconds timeout) {
  if (backend == "inproc" || backend == "plain") {
    auto all = std::make_shared<std::vector<std::unique_ptr<Transport>>>(inproc_transports(world, timeout));
    return [all, backend](int rank) -> std::unique_ptr<Transport> {
      auto transport = std::move(all->at(static_cast<size_t>(rank)));
      if (backend == "inproc") return transport;
      return std::make_unique<PlainTransport>(std::move(transport));
    };
  }
  const auto board = std::make_shared<LocalRendezvous>();
  if (backend != "shm")
    return [board, backend, timeout](int rank) { return transport_on_hosts(backend, rank, board, timeout); };
  std::vector<std::string> who;
  for (int r = 0; r < world; ++r) who.push_back(fmt::format("worker/{}", r));
  return [board, world, who, timeout](int rank) { return shm_transport(board, {rank, world, who, timeout}); };
}

// Makes the communicator of one rank of a world.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(int rank)>;

// Runs `body` once per rank, each in its own thread. Returns the error text of each rank, "" if none.
inline std::vector<std::string> errors_of_ranks(int world, const MakeCommunicator& make,
                                                const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*make(rank));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// `timeout` is that of operations which have none of their own.
inline std::vector<std::string> errors_of_ranks(const std::string& backend, int world,
                                                std::chrono::milliseconds timeout,
                                                const std::function<void(Communicator&)>& body) {
  const MakeTransport make = make_transports(backend, world, kLong);
  return errors_of_ranks(
      world, [&](int rank) { return std::make_unique<Collectives>(make(rank), timeout); }, body);
}

inline void with_ranks(const std::string& backend, int world,
                       const std::function<void(Communicator&)>& body) {
  const auto errors = errors_of_ranks(backend, world, std::chrono::seconds(60), body);
  for (int rank = 0; rank < world; ++rank)
    EXPECT_EQ(errors[static_cast<size_t>(rank)], "") << "rank " << rank;
}

}  // namespace tutti::comm::testing
