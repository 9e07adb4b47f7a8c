#include "tutti/data/source.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/data/feed.h"

namespace tutti::data {
namespace {

void expect_rows(const torch::Tensor& from, const std::vector<int64_t>& rows) {
  const auto source = from_tensors({{"x", from}});
  const torch::Tensor expected = from.index_select(0, torch::tensor(rows, torch::kLong));
  const Batch batch = source->read(rows);
  EXPECT_TRUE(batch["x"].equal(expected));
  EXPECT_EQ(batch["x"].dtype(), from.dtype());
}

TEST(TensorSource, gives_rows_in_the_order_asked_for) {
  const torch::Tensor floats = torch::arange(60, torch::kFloat).reshape({10, 2, 3});
  expect_rows(floats, {3, 4, 5, 0, 9, 9, 1, 2});
  expect_rows(floats, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  expect_rows(floats, {9, 8, 7});
  expect_rows(floats, {});
  expect_rows(torch::arange(10, torch::kByte), {7, 1});
  expect_rows(torch::arange(10, torch::kLong), {7, 8});
  expect_rows(torch::arange(20, torch::kHalf).reshape({10, 2}), {7, 8});
  expect_rows(torch::ones({5, 0}), {4, 0});
}

TEST(TensorSource, takes_tensors_that_are_not_contiguous) {
  expect_rows(torch::arange(12, torch::kFloat).reshape({3, 4}).t(), {3, 0, 1});
}

TEST(TensorSource, gives_memory_of_its_own) {
  const torch::Tensor original = torch::zeros({4, 2});
  const auto source = from_tensors({{"x", original}});
  const std::vector<int64_t> rows = {0, 1, 2, 3};
  source->read(rows)["x"].add_(1);
  EXPECT_TRUE(original.equal(torch::zeros({4, 2})));
}

TEST(TensorSource, refuses_examples_that_are_not_there) {
  const auto source = from_tensors({{"x", torch::zeros({4})}});
  for (const int64_t example : {int64_t{-1}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    error_of(ErrorKind::Bug, [&] { source->read(std::vector<int64_t>{0, example}); });
  }
}

TEST(TensorSource, refuses_tensors_that_do_not_go_together) {
  error_of(ErrorKind::InvalidArgument, [] { from_tensors({}); });
  error_of(ErrorKind::InvalidArgument, [] {
    from_tensors({{"x", torch::ones({2})}, {"y", torch::ones({3})}});
  });
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Statistics, are_those_of_the_numbers_that_are_there) {
  const TableStatistics all =
      statistics_of(at::tensor({1.F, kNan, 5.F, 2.F, kNan, 5.F, 6.F, kNan, 5.F}).reshape({3, 3}));
  EXPECT_TRUE(at::equal(all.count(), at::tensor({3., 0., 3.})));
  EXPECT_TRUE(at::equal(all.missing(), at::tensor({0., 3., 0.})));
  EXPECT_EQ(all.min()[0].item<double>(), 1);
  EXPECT_EQ(all.max()[0].item<double>(), 6);
  EXPECT_DOUBLE_EQ(all.mean()[0].item<double>(), 3);
  EXPECT_DOUBLE_EQ(all.variance()[0].item<double>(), 14. / 3);
  EXPECT_TRUE(all.min().isnan()[1].item<bool>() && all.mean().isnan()[1].item<bool>());
  EXPECT_EQ(all.variance()[2].item<double>(), 0);
}

TEST(Statistics, of_parts_together_are_those_of_the_whole) {
  const torch::Tensor rows = at::sin(at::arange(300, at::kFloat)).reshape({100, 3}) + 1e4;
  TableStatistics parts;
  for (const torch::Tensor& part : rows.split(33)) parts.merge(statistics_of(part));
  const TableStatistics whole = statistics_of(rows);
  EXPECT_TRUE(at::equal(parts.min(), whole.min()) && at::equal(parts.max(), whole.max()));
  EXPECT_TRUE(at::allclose(parts.mean(), whole.mean(), 1e-14));
  EXPECT_TRUE(at::allclose(parts.variance(), whole.variance(), 1e-9));
  EXPECT_TRUE(at::allclose(whole.variance(), rows.to(at::kDouble).var(0, /*unbiased=*/false), 1e-9));
}

TEST(Statistics, of_any_feed_are_found_by_reading_it) {
  const torch::Tensor x = at::arange(5000, at::kFloat);
  const Feed feed(from_tensors({{"x", x.reshape({2500, 2})}}));
  const TableStatistics all = feed.statistics("x");
  EXPECT_TRUE(at::equal(all.max(), at::tensor({4998., 4999.})));
  EXPECT_TRUE(at::equal(all.count(), at::tensor({2500., 2500.})));
}

}  // namespace
}  // namespace tutti::data
