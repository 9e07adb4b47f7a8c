#include "tutti/step/buckets.h"

#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tutti::buckets_test {
namespace {

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < 7; ++i) register_module(std::to_string(i), torch::nn::Linear(40, 10 * (i + 1)));
    register_module("norm", torch::nn::BatchNorm1d(3));
    register_parameter("double", torch::ones({5}, torch::kFloat64));
  }
};

TEST(Buckets, cover_every_vector_once_and_end_where_a_parameter_begins) {
  Net net;
  const Parameters parameters(net);
  for (const int64_t bytes : {1, 4000, 20000, 1 << 20}) {
    const Buckets buckets = buckets_of(parameters, bytes);
    std::vector<int64_t> covered(buckets.vectors.size(), 0);
    for (const Bucket& bucket : buckets.all) {
      EXPECT_EQ(bucket.begin, covered[bucket.vector]);
      covered[bucket.vector] = bucket.end;
    }
    for (size_t v = 0; v < covered.size(); ++v) EXPECT_EQ(covered[v], buckets.vectors[v].numel());
    for (size_t i = 0; i < parameters.trained().size(); ++i) {
      const auto& view = parameters.trained()[i];
      const Bucket& bucket = buckets.all[buckets.of_parameter[i]];
      EXPECT_EQ(bucket.vector, view.block);
      EXPECT_LE(bucket.begin, view.offset);
      EXPECT_GE(bucket.end, view.offset + view.tensor.numel());
      EXPECT_TRUE(bucket.gradients);
    }
  }
  EXPECT_EQ(buckets_of(parameters, 1 << 20).all.size(), 3U);  // float32, float64, buffers
  EXPECT_GE(buckets_of(parameters, 1).all.size(), parameters.trained().size());
}

TEST(Buckets, parts_are_all_of_it_for_any_number_of_workers) {
  for (const int64_t size : {1, 1023, 1024, 1025, 5000, 100000}) {
    const Bucket bucket{.vector = 0, .begin = 64, .end = 64 + size, .gradients = true};
    for (const int world : {1, 2, 3, 7, 64}) {
      int64_t next = bucket.begin;
      for (int rank = 0; rank < world; ++rank) {
        const comm::ElementRange slice = slice_of(bucket, rank, world);
        EXPECT_EQ(slice.begin, next);
        EXPECT_TRUE(slice.end == bucket.end || (slice.end - bucket.begin) % kSliceUnit == 0);
        next = slice.end;
      }
      EXPECT_EQ(next, bucket.end);
    }
  }
}

}  // namespace
}  // namespace tutti::buckets_test
