#include "tutti/data/fingerprint.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include "tutti/data/source.h"

namespace tutti::data {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

Feed feed_of(const torch::Tensor& label, int64_t columns = 2) {
  return Feed(from_tensors({{"x", torch::ones({label.size(0), columns})}, {"label", label}}));
}

TEST(Fingerprint, names_what_differs) {
  const torch::Tensor label = torch::arange(100);
  const Fingerprint one = columns_of(feed_of(label), 1);
  EXPECT_EQ(one, columns_of(feed_of(label.clone()), 1));
  const Fingerprint other = columns_of(feed_of(label + 1), 1);
  ASSERT_EQ(other.size(), 2);
  EXPECT_EQ(other[0], one[0]);
  EXPECT_NE(other[1], one[1]);
  EXPECT_EQ(other[1].first, "column label");
  EXPECT_NE(columns_of(feed_of(label.to(torch::kInt32)), 1)[1], one[1]);
  EXPECT_THAT(columns_of(feed_of(label, 3), 1), Contains(Pair("column x", HasSubstr("float32[3]"))));
}

TEST(Fingerprint, looks_at_the_first_and_the_last_example) {
  const torch::Tensor label = torch::zeros({1000}, torch::kInt64);
  const Fingerprint one = columns_of(feed_of(label), 1);
  for (const int64_t changed : {0, 999}) {
    torch::Tensor other = label.clone();
    other[changed] = 1;
    EXPECT_NE(columns_of(feed_of(other), 1), one) << changed;
  }
  EXPECT_THAT(columns_of(feed_of(torch::arange(1)), 1), testing::SizeIs(2));
  EXPECT_THAT(columns_of(feed_of(torch::arange(0)), 1), IsEmpty());
}

TEST(Fingerprint, order_has_size_shuffling_and_the_ranges_of_lanes) {
  const Feed feed = feed_of(torch::arange(100));
  const auto halves = [](int64_t lanes, int64_t examples) {
    std::vector<ExampleRange> ranges;
    for (int64_t lane = 0; lane < lanes; ++lane)
      ranges.push_back({examples * lane / lanes, examples * (lane + 1) / lanes});
    return ranges;
  };
  EXPECT_NE(order_of(feed, 2), order_of(feed.take(99), 2));
  EXPECT_NE(order_of(feed, 2), order_of(feed.shuffle(), 2));
  EXPECT_NE(order_of(feed, 2), order_of(feed.deal(halves), 2));
  EXPECT_EQ(order_of(feed, 2), order_of(feed, 4));
  EXPECT_NE(order_of(feed.deal(halves), 2), order_of(feed.deal(halves), 4));
}

}  // namespace
}  // namespace tutti::data
