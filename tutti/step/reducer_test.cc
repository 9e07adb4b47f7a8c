#include "tutti/step/reducer.h"

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/nccl/test_device.h"

namespace tutti::reducer_test {
namespace {

using comm::testing::with_device::backends;
using comm::testing::with_device::errors_of_ranks;
using comm::testing::with_device::with_ranks;

constexpr int64_t kSize = 5003;

// Returns a lane's values at a step, whose sum depends on the order of addition; nullopt if it has no data.
std::optional<torch::Tensor> lane_values(int64_t lane, int64_t step, uint64_t without_data, int64_t size) {
  if ((without_data >> lane) & 1) return std::nullopt;
  const torch::Tensor index = torch::arange(size, torch::kFloat);
  return torch::sin(index * 0.37 + static_cast<double>(lane * 5 + step)) *
         std::pow(10.0, static_cast<double>(lane % 7));
}

// Adds from the top, following the definition only.
std::optional<torch::Tensor> reference(const std::vector<std::optional<torch::Tensor>>& leaves, int64_t begin,
                                       int64_t width) {
  if (begin >= static_cast<int64_t>(leaves.size())) return std::nullopt;
  if (width == 1) return leaves[static_cast<size_t>(begin)];
  const auto left = reference(leaves, begin, width / 2);
  const auto right = reference(leaves, begin + width / 2, width / 2);
  if (left && right) return *left + *right;
  return left ? left : right;
}

torch::Tensor vector_for(comm::Communicator& comm, int64_t size) {
  comm::SharedVectors* const shared = shared_by(comm, torch::kCPU);
  return shared != nullptr ? shared->allocate(size, torch::kFloat) : torch::zeros({size});
}

// Makes each vector one bucket.
Buckets whole_vectors(std::vector<torch::Tensor> vectors) {
  Buckets buckets;
  buckets.vectors = std::move(vectors);
  for (size_t i = 0; i < buckets.vectors.size(); ++i)
    buckets.all.push_back({.vector = i, .begin = 0, .end = buckets.vectors[i].numel(), .gradients = true});
  return buckets;
}

void reduce_and_compare(comm::Communicator& comm, int64_t lanes, uint64_t without_data,
                        int64_t size = kSize) {
  const torch::Tensor vector = vector_for(comm, size);
  const torch::Tensor small = vector_for(comm, 1);
  const torch::Tensor numbers = torch::zeros({2}, torch::kDouble);
  Reducer reducer(comm, whole_vectors({vector, small}), numbers, lanes, {});
  for (int64_t step = 0; step < 3; ++step) {
    const int last = comm.world() - 1;
    reducer.begin(
        step,
        {.stop = comm.rank() == last, .save = comm.rank() == last, .signal = comm.rank() == 1 ? 15 : 0});
    std::vector<std::optional<torch::Tensor>> leaves;
    for (int64_t lane = 0; lane < lanes; ++lane)
      leaves.push_back(lane_values(lane, step, without_data, size));
    for (int64_t lane = reducer.own_lanes().begin; lane < reducer.own_lanes().end; ++lane) {
      const auto& leaf = leaves[static_cast<size_t>(lane)];
      if (!leaf) {
        vector.fill_(std::nan(""));
        reducer.skip();
        continue;
      }
      vector.copy_(*leaf);
      small.copy_(leaf->narrow(0, 0, 1));
      numbers[0] = static_cast<double>(lane);
      numbers[1] = 1;
      reducer.add();
    }
    const auto outcome = reducer.finish();
    EXPECT_TRUE(outcome.wishes.stop);
    EXPECT_EQ(outcome.wishes.signal, comm.world() > 1 ? 15 : 0);
    EXPECT_TRUE(outcome.wishes.save);
    int64_t width = 1;
    while (width < lanes) width *= 2;
    const auto expected = reference(leaves, 0, width);
    ASSERT_EQ(outcome.any_data, expected.has_value());
    if (!expected) continue;
    EXPECT_TRUE(torch::equal(vector, *expected))
        << comm.world() << " workers, " << lanes << " lanes, step " << step;
    EXPECT_TRUE(torch::equal(small, expected->narrow(0, 0, 1)));
    double sum = 0;
    double count = 0;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (!leaves[static_cast<size_t>(lane)]) continue;
      sum += static_cast<double>(lane);
      count += 1;
    }
    EXPECT_EQ(numbers[0].item<double>(), sum);
    EXPECT_EQ(numbers[1].item<double>(), count);
  }
}

class ReducerOver : public ::testing::TestWithParam<std::string> {};

TEST_P(ReducerOver, gives_the_same_bits_whoever_has_the_lanes) {
  for (const int world : {1, 2, 3, 4, 5, 8}) {
    for (const int64_t lanes : {1, 2, 3, 7, 8, 13})
      with_ranks(GetParam(), world, [&](comm::Communicator& comm) { reduce_and_compare(comm, lanes, 0); });
  }
}

TEST_P(ReducerOver, leaves_out_lanes_without_data) {
  for (const int world : {1, 2, 3, 8}) {
    for (const uint64_t without_data : {0x01U, 0x80U, 0x0fU, 0xf0U, 0x55U, 0xfeU, 0xffU})
      with_ranks(GetParam(), world,
                 [&](comm::Communicator& comm) { reduce_and_compare(comm, 8, without_data); });
  }
}

// Workers that hold several subtrees, and vectors of which only a part is under way at a time.
TEST(Reducer, gives_the_same_bits_on_several_hosts) {
  for (const std::string hosts : {"aab", "abbb", "aaabbc"}) {
    with_ranks(hosts, static_cast<int>(hosts.size()), [&](comm::Communicator& comm) {
      for (const int64_t lanes : {2, 7, 13}) reduce_and_compare(comm, lanes, 0);
      for (const uint64_t without_data : {0x01U, 0x30U, 0x55U, 0x7fU})
        reduce_and_compare(comm, 7, without_data);
      reduce_and_compare(comm, 5, 0, 2200003);
    });
  }
}

TEST_P(ReducerOver, finds_a_worker_at_another_step) {
  const auto errors = errors_of_ranks(GetParam(), 2, std::chrono::seconds(60), [](comm::Communicator& comm) {
    Reducer reducer(comm, whole_vectors({vector_for(comm, 10)}), torch::zeros({1}, torch::kDouble), 2, {});
    reducer.begin(comm.rank() == 0 ? 7 : 8, {});
    reducer.skip();
    reducer.finish();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0 is at step 7, rank 1 at step 8"), std::string::npos) << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ReducerOver, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::reducer_test
