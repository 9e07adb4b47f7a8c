#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/test_conformance.h"
#include "tutti/comm/test_ranks.h"

namespace tutti::comm::testing {

// Checks for ranks on any hosts. `hosts` has one letter per rank.

inline void check_communicator_on(const std::string& hosts) {
  with_ranks(hosts, static_cast<int>(hosts.size()), check_conformance);
}

// Returns, by rank, the result of all_reduce followed by that of reduce_scatter.
inline std::vector<torch::Tensor> sums_over(const std::string& backend,
                                            const std::vector<torch::Tensor>& inputs, ReduceOp op) {
  std::vector<torch::Tensor> sums(inputs.size());
  with_ranks(backend, static_cast<int>(inputs.size()), [&](Communicator& comm) {
    const auto r = static_cast<size_t>(comm.rank());
    const torch::Tensor tensor = inputs[r].clone();
    comm.all_reduce(tensor, op).wait();
    const int64_t even = tensor.numel() / comm.world() * comm.world();
    const torch::Tensor part = torch::empty({even / comm.world()}, tensor.options());
    comm.reduce_scatter(part, inputs[r].narrow(0, 0, even), op).wait();
    sums[r] = torch::cat({tensor, part});
  });
  return sums;
}

inline void check_sums_of(const std::string& hosts, int64_t size, torch::ScalarType type, ReduceOp op) {
  std::vector<torch::Tensor> inputs;
  for (size_t r = 0; r < hosts.size(); ++r)
    inputs.push_back(torch::randn({size}).mul_(static_cast<double>(1 + r)).to(type));
  const auto expected = sums_over("inproc", inputs, op);
  const auto sums = sums_over(hosts, inputs, op);
  for (size_t r = 0; r < sums.size(); ++r)
    EXPECT_TRUE(torch::equal(sums[r], expected[r])) << size << " " << c10::toString(type) << " rank " << r;
}

inline void check_sums_on(const std::string& hosts) {
  for (const int64_t size : {1, 100, 50000}) {
    for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product})
        check_sums_of(hosts, size, type, op);
    }
  }
  // More elements than are in flight at a time.
  check_sums_of(hosts, 2500001, torch::kFloat, ReduceOp::Sum);
}

inline void check_long_movements_on(const std::string& hosts) {
  constexpr int64_t kSize = 2200001;
  with_ranks(hosts, static_cast<int>(hosts.size()), [&](Communicator& comm) {
    const auto values_of = [](int rank) { return torch::arange(kSize).add_(rank).to(torch::kFloat); };
    const torch::Tensor copy = values_of(comm.rank());
    comm.broadcast(copy, comm.world() - 1).wait();
    EXPECT_TRUE(torch::equal(copy, values_of(comm.world() - 1)));
    const torch::Tensor all = torch::empty({comm.world() * kSize});
    comm.all_gather(all, values_of(comm.rank())).wait();
    for (int r = 0; r < comm.world(); ++r)
      EXPECT_TRUE(torch::equal(all.narrow(0, r * kSize, kSize), values_of(r)));
  });
}

// Splits off all ranks but the first; then the ranks of each host.
inline void check_parts_of(const std::string& hosts) {
  with_ranks(hosts, static_cast<int>(hosts.size()), [&](Communicator& comm) {
    const int host = hosts[static_cast<size_t>(comm.rank())];
    for (const int colour : {comm.rank() == 0 ? -1 : 0, host}) {
      const auto group = comm.split(colour);
      if (!group) continue;
      const torch::Tensor ones = torch::ones({1000});
      group->all_reduce(ones, ReduceOp::Sum).wait();
      EXPECT_TRUE(torch::equal(ones, torch::full({1000}, static_cast<float>(group->world()))));
    }
  });
}

}  // namespace tutti::comm::testing
