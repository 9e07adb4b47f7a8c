#include "tutti/data/feed.h"

#include <stdexcept>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace tutti::data
