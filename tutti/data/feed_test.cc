#include "tutti/data/feed.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/data/source.h"

namespace tutti::data {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

Feed numbers(int64_t count) { return Feed(from_tensors({{"x", torch::arange(count, torch::kLong)}})); }

Batch add_one(const Batch& batch) { return Batch({{"x", batch["x"] + 1}}); }

class BrokenSource final : public Source {
 public:
  int64_t size() const override { return 10; }
  Batch read(std::span<const int64_t>) const override { throw std::runtime_error("disk on fire"); }
};

const std::vector<int64_t> kThree = {3, 4, 5};

TEST(Feed, is_a_value_whose_verbs_leave_it_as_it_is) {
  const Feed feed = numbers(10);
  const Feed other = feed.shuffle().take(4).map(add_one).with({.threads = 3});
  EXPECT_EQ(feed.size(), 10);
  EXPECT_EQ(feed.order(), Order::Sequential);
  EXPECT_EQ(feed.options().threads, 1);
  EXPECT_EQ(other.size(), 4);
  EXPECT_EQ(other.order(), Order::Shuffled);
  EXPECT_EQ(other.options().threads, 3);
  EXPECT_TRUE(other.weak_sources()[0].lock() == feed.weak_sources()[0].lock());
}

TEST(Feed, transforms_in_the_order_given) {
  const Feed feed = numbers(10).map(add_one).map([](Batch batch) { return Batch({{"x", batch["x"] * 10}}); });
  EXPECT_TRUE(feed.read(kThree)["x"].equal(torch::tensor({40, 50, 60}, torch::kLong)));
}

TEST(Feed, takes_no_more_than_there_is) {
  EXPECT_EQ(numbers(10).take(100).size(), 10);
  EXPECT_EQ(numbers(10).take(0).size(), 0);
  EXPECT_EQ(numbers(0).size(), 0);
  error_of(ErrorKind::InvalidArgument, [] { numbers(10).take(-1); });
}

TEST(Feed, reads_nothing_for_no_examples) {
  EXPECT_EQ(Feed(std::make_shared<BrokenSource>()).read({}).size(), 0);
}

TEST(Feed, turns_what_foreign_code_throws_into_an_error) {
  const auto text =
      error_of(ErrorKind::DataLoss, [] { Feed(std::make_shared<BrokenSource>()).read(kThree); });
  EXPECT_THAT(text, HasSubstr("3 examples (the first is 3)"));
  EXPECT_THAT(text, HasSubstr("disk on fire"));
  const Feed bad = numbers(10).map([](Batch batch) { return Batch({{"x", batch["x"].reshape({-1, 7})}}); });
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { bad.read(kThree); }), HasSubstr("transforming"));
}

TEST(Feed, lets_a_readers_own_error_through) {
  const Feed feed =
      numbers(10).map([](Batch) -> Batch { fail(ErrorKind::Unimplemented, "records.tsv: record 4"); });
  EXPECT_EQ(error_of(ErrorKind::Unimplemented, [&] { feed.read(kThree); }), "records.tsv: record 4");
}

TEST(Feed, refuses_a_transform_that_loses_examples) {
  const Feed feed = numbers(10).map([](Batch batch) { return Batch({{"x", batch["x"].slice(0, 1)}}); });
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { feed.read(kThree); }),
              HasSubstr("2 rows for 3 examples"));
}

TEST(Feed, refuses_what_makes_no_sense) {
  error_of(ErrorKind::InvalidArgument, [] { Feed(nullptr); });
  error_of(ErrorKind::InvalidArgument, [] { numbers(1).map(nullptr); });
  error_of(ErrorKind::InvalidArgument, [] { numbers(1).with({.threads = 0}); });
  error_of(ErrorKind::InvalidArgument, [] { numbers(1).with({.ahead = 0}); });
  error_of(ErrorKind::InvalidArgument, [] { numbers(1).with({.timeout = std::chrono::milliseconds(-1)}); });
}

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
