#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/data/batch_queue.h"

namespace tutti::data {
namespace {

TEST(BatchGpu, arrives_through_pinned_memory_as_it_left) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NOT TESTED: there is no GPU";
  const torch::Tensor rows = torch::arange(60).reshape({20, 3});
  const Feed feed = Feed(from_tensors({{"x", rows}})).with({.threads = 2});
  const torch::Device device(torch::kCUDA, 0);
  BatchQueue queue(feed, Sampler(20, {.order = Order::Sequential, .batch = 5}),
                   {.end_step = 4, .device = device});
  for (int64_t step = 0; step < 4; ++step) {
    const auto batch = queue.next();
    ASSERT_TRUE(batch.has_value());
    EXPECT_TRUE((*batch)["x"].is_pinned());
    const Batch there = batch->to(device);
    EXPECT_TRUE(there["x"].is_cuda());
    EXPECT_TRUE(there["x"].cpu().equal(rows.slice(0, step * 5, step * 5 + 5)));
  }
}

TEST(BatchGpu, gives_rows_of_tensors_that_live_on_the_gpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NOT TESTED: there is no GPU";
  const torch::Tensor rows = torch::arange(60).reshape({20, 3});
  const auto source = from_tensors({{"x", rows.cuda()}});
  const Batch batch = source->read(std::vector<int64_t>{7, 2, 19});
  EXPECT_TRUE(batch["x"].is_cuda());
  EXPECT_TRUE(batch["x"].cpu().equal(rows.index_select(0, torch::tensor({7, 2, 19}))));
}

}  // namespace
}  // namespace tutti::data
