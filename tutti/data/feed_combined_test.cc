// Tests feeds that are made of other feeds: skip, split, concat, mix.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/batch_queue.h"
#include "tutti/data/feed.h"
#include "tutti/data/tables/table_feed.h"

namespace tutti::data {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Numbers = std::vector<int64_t>;

Feed count_from(int64_t first, int64_t count) {
  const torch::Tensor x = torch::arange(first, first + count);
  return Feed(from_tensors({{"x", x}, {"square", (x * x).to(torch::kFloat32).unsqueeze(1)}}));
}

Numbers up_to(int64_t count) {
  Numbers all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Reads the feed as training does, in its order.
Numbers read_through(const Feed& feed, int64_t epoch = 0, int64_t batch = 4) {
  const Sampler sampler(feed.size(), {.order = feed.order(), .batch = batch});
  const int64_t steps = sampler.steps_per_epoch();
  BatchQueue queue(feed, sampler, {.first_step = epoch * steps, .end_step = (epoch + 1) * steps});
  Numbers seen;
  while (const auto rows = queue.next()) {
    EXPECT_TRUE((*rows)["square"].squeeze(1).equal(((*rows)["x"] % 1000).square().to(torch::kFloat32)));
    for (int64_t i = 0; i < rows->size(); ++i) seen.push_back((*rows)["x"][i].item<int64_t>());
  }
  return seen;
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// Adds a thousand, which read_through() takes away again before it compares.
Batch add_thousand(const Batch& batch) {
  return Batch({{"square", batch["square"]}, {"x", batch["x"] + 1000}});
}

TEST(CombinedFeed, skip_and_take_are_the_two_ends_of_a_feed) {
  const Feed feed = count_from(0, 10);
  EXPECT_THAT(read_through(feed.skip(7)), ElementsAre(7, 8, 9));
  EXPECT_THAT(read_through(feed.skip(2).take(3)), ElementsAre(2, 3, 4));
  EXPECT_THAT(read_through(feed.take(5).skip(2)), ElementsAre(2, 3, 4));
  EXPECT_THAT(read_through(feed.skip(2).skip(3).skip(4)), ElementsAre(9));
  EXPECT_EQ(feed.skip(100).size(), 0);
  EXPECT_EQ(sorted(read_through(feed.shuffle().skip(8))), (Numbers{8, 9}));
  error_of(ErrorKind::InvalidArgument, [&] { feed.skip(-1); });
}

TEST(CombinedFeed, skip_keeps_the_way_of_reading) {
  const Feed feed = count_from(0, 10).shuffle().map(add_thousand).with({.threads = 3}).skip(4);
  EXPECT_EQ(feed.order(), Order::Shuffled);
  EXPECT_EQ(feed.options().threads, 3);
  EXPECT_EQ(feed.id(0), "4");
  EXPECT_EQ(feed.read(Numbers{0})["x"].item<int64_t>(), 1004);
}

TEST(CombinedFeed, split_gives_each_example_to_one_part) {
  const Feed feed = count_from(0, 101);
  for (const Order order : {Order::Shuffled, Order::Sequential}) {
    const auto parts = feed.split({0.7, 0.2, 0.1}, {.order = order, .seed = 3});
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts[0].size(), 71);
    EXPECT_EQ(parts[1].size(), 20);
    EXPECT_EQ(parts[2].size(), 10);
    Numbers all;
    for (const Feed& part : parts) {
      EXPECT_EQ(part.order(), Order::Sequential);
      for (const int64_t number : read_through(part)) all.push_back(number);
    }
    EXPECT_EQ(sorted(all), up_to(101));
    EXPECT_EQ(std::is_sorted(all.begin(), all.end()), order == Order::Sequential);
  }
}

TEST(CombinedFeed, split_depends_on_the_seed_alone) {
  const Feed feed = count_from(0, 50);
  const Numbers test = read_through(feed.split({0.8, 0.2})[1]);
  EXPECT_EQ(read_through(feed.split({0.8, 0.2})[1]), test);
  EXPECT_EQ(sorted(read_through(feed.shuffle().split({0.8, 0.2})[1])), sorted(test));
  EXPECT_EQ(feed.shuffle().split({0.8, 0.2})[1].order(), Order::Shuffled);
  EXPECT_NE(sorted(read_through(feed.split({0.8, 0.2}, {.seed = 2})[1])), sorted(test));
  EXPECT_EQ(feed.take(10).split({0.5, 0.5})[1].size(), 5);
}

TEST(CombinedFeed, split_refuses_fractions_that_are_none) {
  const Feed feed = count_from(0, 10);
  for (const std::vector<double>& bad :
       {std::vector<double>{0.9, 0.2}, {0.5}, {1.5, -0.5}, {}, {std::nan(""), 1}}) {
    EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { feed.split(bad); }), HasSubstr("add up to 1"));
  }
  EXPECT_EQ(feed.split({1.0 / 3, 1.0 / 3, 1.0 / 3})[2].size(), 3);
}

// Separate examples for each lane: the partitions Size and Mod.
TEST(CombinedFeed, split_by_order_and_skip_deal_what_is_left) {
  const Feed dealt = count_from(0, 12).deal([](int64_t lanes, int64_t examples) {
    std::vector<ExampleRange> ranges;
    for (int64_t lane = 0; lane < lanes; ++lane)
      ranges.push_back({examples * lane / lanes, examples * (lane + 1) / lanes});
    return ranges;
  });
  EXPECT_THAT(dealt.skip(4).ranges(2), ElementsAre(ExampleRange{0, 4}, ExampleRange{4, 8}));
  const auto halves = dealt.split({0.5, 0.5}, {.order = Order::Sequential});
  EXPECT_THAT(halves[1].ranges(2), ElementsAre(ExampleRange{0, 3}, ExampleRange{3, 6}));
  EXPECT_EQ(halves[1].read(Numbers{0})["x"].item<int64_t>(), 6);
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] {
                         dealt.split({0.5, 0.5});
                       }),
              HasSubstr("Sequential"));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] {
                         concat({count_from(0, 3), dealt});
                       }),
              AllOf(HasSubstr("feed 1"), HasSubstr("deal()")));
}

TEST(CombinedFeed, concat_reads_one_feed_after_the_other) {
  const Feed feed = concat({count_from(0, 3), count_from(10, 0), count_from(20, 3)});
  EXPECT_THAT(read_through(feed), ElementsAre(0, 1, 2, 20, 21, 22));
  EXPECT_EQ(feed.id(3), "0");
  EXPECT_EQ(concat({count_from(5, 2)}).read(Numbers{1})["x"].item<int64_t>(), 6);
}

TEST(CombinedFeed, concat_is_shuffled_as_one_feed) {
  const Feed feed = concat({count_from(0, 40).shuffle(), count_from(40, 60).shuffle()});
  const Numbers first = read_through(feed);
  EXPECT_EQ(sorted(first), up_to(100));
  EXPECT_TRUE(std::any_of(first.begin(), first.begin() + 30, [](int64_t number) { return number >= 40; }));
  EXPECT_NE(read_through(feed, 1), first);
  EXPECT_EQ(first, read_through(concat({count_from(0, 40), count_from(40, 60)}).shuffle()));
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [] {
                         concat({count_from(0, 4), count_from(0, 4).shuffle()});
                       }),
              HasSubstr("shuffle() on the result"));
}

TEST(CombinedFeed, each_part_keeps_its_transforms) {
  int64_t rows_seen = 0;
  const Feed counted = count_from(10, 2).map([&](Batch batch) {
    rows_seen += batch.size();
    return batch;
  });
  rows_seen = 0;
  const Feed feed = concat({count_from(0, 2).map(add_thousand), counted}).map([](Batch batch) {
    EXPECT_EQ(batch.size(), 4);
    return Batch({{"x", batch["x"] * 10}});
  });
  rows_seen = 0;
  // The third row comes first: rows keep the order that was asked for.
  const torch::Tensor x = feed.read(Numbers{2, 0, 3, 1})["x"];
  EXPECT_TRUE(x.equal(torch::tensor({100, 10000, 110, 10010}))) << x;
  EXPECT_EQ(rows_seen, 2);
}

TEST(CombinedFeed, nests) {
  const Feed inner = concat({count_from(0, 2), count_from(10, 2)}).skip(1).map(add_thousand);
  const Feed feed = concat({inner, count_from(20, 2)}).skip(1).take(3);
  EXPECT_THAT(read_through(feed), ElementsAre(1010, 1011, 20));
  EXPECT_EQ(feed.recipe(), "skip 1(concat(skip 1(concat(2, 2)), 2))");
}

TEST(CombinedFeed, mix_reads_all_of_each_feed) {
  const Feed feed = mix({count_from(0, 10), count_from(100, 10)}, {3, 1});
  // The second feed lasts for 40 examples, in which the first is read three times.
  EXPECT_EQ(feed.size(), 40);
  const Numbers numbers = sorted(read_through(feed));
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t expected = i < 30 ? i / 3 : 100 + i - 30;
    EXPECT_EQ(numbers[static_cast<size_t>(i)], expected);
  }
}

TEST(CombinedFeed, mix_may_end_with_the_first_feed_that_is_read) {
  const Feed feed = mix({count_from(0, 10), count_from(100, 10)}, {3, 1}, {.end = MixEnd::FirstRead});
  EXPECT_EQ(sorted(read_through(feed)), (Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 101, 102}));
}

TEST(CombinedFeed, mix_has_its_proportions_in_every_batch) {
  const Feed feed = mix({count_from(0, 30), count_from(100, 90)}, {0.25, 0.75}, {.seed = 5});
  const Numbers numbers = read_through(feed);
  for (size_t begin = 0; begin < numbers.size(); begin += 8) {
    const auto of_first = std::count_if(numbers.begin() + static_cast<ptrdiff_t>(begin),
                                        numbers.begin() + static_cast<ptrdiff_t>(begin) + 8,
                                        [](int64_t number) { return number < 100; });
    EXPECT_EQ(of_first, 2);
  }
  EXPECT_EQ(read_through(mix({count_from(0, 30), count_from(100, 90)}, {1, 3}, {.seed = 5})), numbers);
  EXPECT_EQ(sorted(read_through(feed.shuffle())), sorted(numbers));
}

TEST(CombinedFeed, mix_refuses_what_makes_no_sense) {
  const Feed a = count_from(0, 10);
  const auto refused = [&](const std::vector<Feed>& feeds, const std::vector<double>& weights,
                           const char* text) {
    EXPECT_THAT(error_of(ErrorKind::InvalidArgument, [&] { mix(feeds, weights); }), HasSubstr(text));
  };
  refused({a, a}, {1}, "2 feeds and 1 weights");
  refused({}, {}, "one weight for each");
  refused({a, a}, {1, 0}, "the weight of feed 1 is 0");
  refused({a, a}, {1, std::nan("")}, "the weight of feed 1");
  refused({a, a.take(0)}, {1, 1}, "feed 1 has no examples");
  refused({a, a}, {1, 1e-15}, "more than 2^52");
}

TEST(CombinedFeed, refuses_other_columns_and_names_both) {
  const torch::Tensor x = torch::zeros({4, 3});
  const torch::Tensor label = torch::arange(4);
  const Feed feed(from_tensors({{"x", x}, {"label", label}}));
  const auto refused = [&](const Feed& other, const char* text) {
    EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                         [&] {
                           concat({feed, other});
                         }),
                AllOf(HasSubstr("feeds 0 and 1"), HasSubstr("x float32[3], label int64[]"), HasSubstr(text)));
    error_of(ErrorKind::InvalidArgument, [&] { mix({feed, other}, {1, 1}); });
  };
  refused(Feed(from_tensors({{"x", x}})), "x float32[3] in feed 1");
  refused(Feed(from_tensors({{"x", x}, {"labels", label}})), "labels int64[]");
  refused(Feed(from_tensors({{"x", x}, {"label", label.to(torch::kInt32)}})), "label int32[]");
  refused(Feed(from_tensors({{"x", x.to(torch::kFloat64)}, {"label", label}})), "x float64[3]");
  refused(Feed(from_tensors({{"x", torch::zeros({4, 2})}, {"label", label}})), "x float32[2]");
  // The order of the columns does not matter: the first feed determines it.
  const Feed turned = concat({feed, Feed(from_tensors({{"label", label}, {"x", x}}))});
  EXPECT_EQ(turned.read(Numbers{7}).tensors()[0].first, "x");
}

TEST(CombinedFeed, refuses_columns_that_change_later) {
  const auto narrow_later = [](Batch batch) {
    return batch.size() == 1 ? batch : Batch({{"x", batch["x"]}, {"square", batch["square"].squeeze(1)}});
  };
  const Feed feed = concat({count_from(0, 4), count_from(4, 4).map(narrow_later)});
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] {
                         feed.read(Numbers{0, 4, 5});
                       }),
              AllOf(HasSubstr("feed 1"), HasSubstr("square float32[]")));
}

TEST(CombinedFeed, draws_no_random_numbers_of_the_program) {
  const Feed noisy = count_from(0, 4).map([](Batch batch) {
    torch::rand({1});
    return batch;
  });
  torch::manual_seed(3);
  const torch::Tensor expected = torch::rand({1});
  torch::manual_seed(3);
  concat({noisy, noisy});
  EXPECT_TRUE(torch::rand({1}).equal(expected));
}

TEST(CombinedFeed, joins_sparse_and_ragged_tables) {
  const TestFolder folder;
  for (const char* shard : {"a/s0", "b/s0"}) std::filesystem::create_directories(folder / shard);
  folder.write("a/s0/lists.tsv", "ID\tx\nq\t1 2 3\nr\t4\n");
  folder.write("a/s0/words.tsv", "ID\tx\nq\t0 2\nr\t1\n");
  folder.write("b/s0/lists.tsv", "ID\tx\nu\t5 6\n");
  folder.write("b/s0/words.tsv", "ID\tx\nu\t4\n");
  const Schema schema = {{"lists", {"lists.tsv", ragged()}}, {"words", {"words.tsv", indices(5)}}};
  const Feed feed = concat({table_feed(folder / "a", schema), table_feed(folder / "b", schema)});
  const Batch batch = feed.read(Numbers{2, 1});
  const torch::Tensor lists = batch["lists"];
  EXPECT_TRUE(torch::nan_to_num(lists, -1).equal(torch::tensor({{{5.0F, 6.0F}}, {{4.0F, -1.0F}}}))) << lists;
  EXPECT_TRUE(batch["lists length"].to(torch::kInt64).flatten().equal(torch::tensor({2, 1})));
  EXPECT_TRUE(batch["words"].to_dense().equal(
      torch::tensor({{0.0F, 0.0F, 0.0F, 0.0F, 1.0F}, {0.0F, 1.0F, 0.0F, 0.0F, 0.0F}})));
  EXPECT_EQ(feed.id(2), "u");
  EXPECT_EQ(feed.id(1), "r");
  EXPECT_THAT(feed.place_of(2), HasSubstr("b/s0"));
}

class WithBadRows final : public Source {
 public:
  explicit WithBadRows(int64_t bad) : bad_(bad) {}
  int64_t size() const override { return 4; }
  Batch read(std::span<const int64_t> examples) const override {
    return Batch({{"x", torch::zeros({static_cast<int64_t>(examples.size())})}});
  }
  LeftOut left_out() const override { return {bad_, bad_ > 0 ? fmt::format("row {}", bad_) : ""}; }

 private:
  const int64_t bad_;
};

TEST(CombinedFeed, counts_the_left_out_examples_of_each_source_once) {
  const Feed one(std::make_shared<WithBadRows>(3));
  const Feed other(std::make_shared<WithBadRows>(4));
  const auto halves = one.split({0.5, 0.5});
  const Source::LeftOut all = concat({halves[0], other, halves[1]}).left_out();
  EXPECT_EQ(all.examples, 7);
  EXPECT_EQ(all.why, "row 3");
}

TEST(CombinedFeed, statistics_are_those_of_its_own_examples) {
  const Feed feed = count_from(0, 10);
  EXPECT_EQ(feed.statistics("x").columns.at(0).max, 9);
  EXPECT_EQ(feed.take(4).statistics("x").columns.at(0).max, 3);
  EXPECT_EQ(feed.skip(4).statistics("x").columns.at(0).min, 4);
  EXPECT_EQ(mix({feed, feed.take(1)}, {1, 1}).statistics("x").columns.at(0).mean, 2.25);
}

TEST(CombinedFeed, fingerprints_tell_combinations_apart) {
  const Feed a = count_from(0, 100);
  const Feed b = count_from(100, 100);
  const std::vector<Feed> different = {a,
                                       concat({a, b}),
                                       concat({b, a}),
                                       concat({a, b}).skip(20).take(100),
                                       concat({a.take(50), b.take(50)}),
                                       concat({a.take(51), b.take(49)}),
                                       concat({a.skip(50), b.take(50)}),
                                       mix({a, b}, {1, 1}),
                                       mix({a, b}, {1, 1}, {.seed = 2}),
                                       mix({a, b}, {1, 3}),
                                       a.split({0.5, 0.5})[0],
                                       a.split({0.5, 0.5})[1],
                                       a.split({0.5, 0.5}, {.seed = 2})[0],
                                       a.split({0.5, 0.5}, {.order = Order::Sequential})[1]};
  const auto both_of = [](const Feed& feed) {
    Fingerprint lines = order_of(feed, 2);
    for (auto& line : columns_of(feed, 2)) lines.push_back(line);
    return lines;
  };
  for (size_t i = 0; i < different.size(); ++i) {
    EXPECT_EQ(both_of(different[i]), both_of(different[i]));
    for (size_t j = 0; j < i; ++j) EXPECT_NE(both_of(different[i]), both_of(different[j])) << i << " " << j;
  }
  EXPECT_THAT(order_of(concat({a, b}), 2), Contains(Pair("combination", "concat(100, 100)")));
  EXPECT_THAT(order_of(a, 2), Contains(Pair("combination", "none")));
  EXPECT_THAT(columns_of(concat({a, b}).skip(1), 2),
              Contains(Pair("feed 1: column x", HasSubstr("int64[]"))));
}

}  // namespace
}  // namespace tutti::data
