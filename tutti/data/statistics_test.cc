#include "tutti/data/statistics.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tutti/data/feed.h"
#include "tutti/data/source.h"

namespace tutti::data {
namespace {

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
