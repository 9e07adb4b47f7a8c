#include "tutti/lanes/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

std::vector<int64_t> seen_by(const Sampler& sampler, int64_t step, int64_t lane) {
  std::vector<int64_t> examples = {-7, -7};  // examples() must replace these
  sampler.examples(step, lane, examples);
  return examples;
}

std::vector<int64_t> epoch_of_all_lanes(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
    for (int64_t lane = 0; lane < sampler.options().lanes; ++lane) {
      const auto part = seen_by(sampler, epoch * sampler.steps_per_epoch() + step, lane);
      EXPECT_LE(static_cast<int64_t>(part.size()), sampler.options().batch);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

void expect_every_example_once(int64_t size, const SamplerOptions& options) {
  const Sampler sampler(size, options);
  for (const int64_t epoch : {0, 1, 5}) {
    auto all = epoch_of_all_lanes(sampler, epoch);
    std::sort(all.begin(), all.end());
    std::vector<int64_t> expected(static_cast<size_t>(size));
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected) << size << " examples, " << options.lanes << " lanes of " << options.batch;
  }
}

TEST(Sampler, deals_out_every_example_once_an_epoch) {
  for (const int64_t size : {1, 2, 3, 7, 8, 49, 50, 51, 100, 257}) {
    for (const int64_t lanes : {1, 2, 3, 4, 8}) {
      for (const int64_t batch : {1, 2, 5, 50, 1000}) {
        expect_every_example_once(size, {.order = Order::Shuffled, .lanes = lanes, .batch = batch});
        expect_every_example_once(size, {.order = Order::Sequential, .lanes = lanes, .batch = batch});
      }
    }
  }
}

TEST(Sampler, has_no_steps_where_there_are_no_examples) {
  const Sampler sampler(0, {.lanes = 2, .batch = 3});
  EXPECT_EQ(sampler.steps_per_epoch(), 0);
  error_of(ErrorKind::InvalidArgument, [&] { seen_by(sampler, 0, 0); });
}

TEST(Sampler, counts_a_short_last_step) {
  EXPECT_EQ(Sampler(60000, {.lanes = 1, .batch = 50}).steps_per_epoch(), 1200);
  EXPECT_EQ(Sampler(60001, {.lanes = 1, .batch = 50}).steps_per_epoch(), 1201);
  EXPECT_EQ(Sampler(1, {.lanes = 8, .batch = 50}).steps_per_epoch(), 1);
  const Sampler sampler(5, {.order = Order::Sequential, .lanes = 4, .batch = 2});
  EXPECT_EQ(seen_by(sampler, 0, 1), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(seen_by(sampler, 0, 2), (std::vector<int64_t>{4}));
  EXPECT_TRUE(seen_by(sampler, 0, 3).empty());
}

TEST(Sampler, numbers_epochs_by_the_global_step) {
  const Sampler sampler(100, {.lanes = 2, .batch = 25});
  EXPECT_EQ(sampler.epoch_of(0), 0);
  EXPECT_EQ(sampler.epoch_of(1), 0);
  EXPECT_EQ(sampler.epoch_of(2), 1);
  EXPECT_EQ(sampler.epoch_of(2'000'000'001), 1'000'000'000);
}

TEST(Sampler, shows_the_same_order_however_many_lanes_share_it) {
  const auto alone = epoch_of_all_lanes(Sampler(1003, {.lanes = 1, .batch = 24}), 2);
  for (const int64_t lanes : {2, 3, 4, 8, 24}) {
    EXPECT_EQ(epoch_of_all_lanes(Sampler(1003, {.lanes = lanes, .batch = 24 / lanes}), 2), alone) << lanes;
  }
}

TEST(Sampler, is_the_same_function_wherever_it_is_resumed) {
  const SamplerOptions options = {.seed = 9, .lanes = 3, .batch = 4};
  const Sampler first(1000, options);
  std::vector<std::vector<int64_t>> seen;
  for (int64_t step = 0; step < 300; ++step) seen.push_back(seen_by(first, step, 1));
  for (int64_t step = 299; step >= 0; --step) {
    EXPECT_EQ(seen_by(Sampler(1000, options), step, 1), seen[static_cast<size_t>(step)]);
  }
}

double correlation(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const double mean = static_cast<double>(a.size() - 1) / 2.0;
  double product = 0.0;
  double square = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    product += (a[i] - mean) * (b[i] - mean);
    square += (a[i] - mean) * (a[i] - mean);
  }
  return product / square;
}

TEST(Sampler, shuffles_every_epoch_and_seed_anew) {
  constexpr int64_t kSize = 10000;
  const double bound = 5.0 / std::sqrt(kSize);
  auto last = epoch_of_all_lanes(Sampler(kSize, {.seed = 1, .batch = 100}), 0);
  for (int64_t epoch = 1; epoch < 20; ++epoch) {
    const auto next = epoch_of_all_lanes(Sampler(kSize, {.seed = 1, .batch = 100}), epoch);
    EXPECT_LT(std::abs(correlation(last, next)), bound) << "epoch " << epoch;
    // Seed 1 + e must not give the order of seed 1 a few epochs later.
    const auto other = epoch_of_all_lanes(Sampler(kSize, {.seed = 1 + epoch, .batch = 100}), 0);
    EXPECT_LT(std::abs(correlation(next, other)), bound) << "epoch " << epoch;
    last = next;
  }
}

TEST(Sampler, keeps_a_sequential_order_every_epoch) {
  const Sampler sampler(10, {.order = Order::Sequential, .seed = 3, .batch = 4});
  EXPECT_EQ(epoch_of_all_lanes(sampler, 0), epoch_of_all_lanes(sampler, 7));
  EXPECT_EQ(epoch_of_all_lanes(sampler, 7), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Sampler, costs_nothing_for_billions) {
  constexpr int64_t kSize = 1'000'000'000'000;
  const Sampler sampler(kSize, {.lanes = 7, .batch = 100});
  EXPECT_EQ(sampler.steps_per_epoch(), 1'428'571'429);
  std::set<int64_t> seen;
  const int64_t last = sampler.steps_per_epoch() - 1;
  for (const int64_t step : {int64_t{0}, last / 2, last}) {
    for (int64_t lane = 0; lane < 7; ++lane) {
      for (const int64_t example : seen_by(sampler, step, lane)) {
        EXPECT_TRUE(example >= 0 && example < kSize);
        EXPECT_TRUE(seen.insert(example).second);
      }
    }
  }
  EXPECT_EQ(seen.size(), 700U + 700U + 400U);
}

TEST(Sampler, goes_to_the_end_of_its_range) {
  constexpr int64_t kMost = int64_t{1} << 62;
  const Sampler one_step(kMost, {.lanes = int64_t{1} << 31, .batch = int64_t{1} << 31});
  EXPECT_EQ(one_step.steps_per_epoch(), 1);
  const Sampler steps(kMost, {.order = Order::Sequential, .lanes = 2, .batch = 1});
  EXPECT_EQ(seen_by(steps, steps.steps_per_epoch() - 1, 1), (std::vector<int64_t>{kMost - 1}));
}

TEST(Sampler, refuses_what_makes_no_sense) {
  error_of(ErrorKind::InvalidArgument, [] { Sampler(-1); });
  error_of(ErrorKind::InvalidArgument, [] { Sampler(INT64_MAX); });
  error_of(ErrorKind::InvalidArgument, [] { Sampler(1, {.lanes = 0}); });
  error_of(ErrorKind::InvalidArgument, [] { Sampler(1, {.batch = -5}); });
  error_of(ErrorKind::InvalidArgument, [] { Sampler(1, {.lanes = INT64_MAX, .batch = 2}); });
  const Sampler sampler(10, {.lanes = 2});
  error_of(ErrorKind::Bug, [&] { seen_by(sampler, -1, 0); });
  error_of(ErrorKind::Bug, [&] { seen_by(sampler, 0, 2); });
  error_of(ErrorKind::Bug, [&] { seen_by(sampler, 0, -1); });
}

TEST(Sampler, with_ranges_deals_each_lane_its_own) {
  const std::vector<ExampleRange> ranges = {{0, 7}, {7, 7}, {7, 10}};
  for (const Order order : {Order::Sequential, Order::Shuffled}) {
    const Sampler sampler(10, {.order = order, .lanes = 3, .batch = 2, .ranges = ranges});
    EXPECT_EQ(sampler.steps_per_epoch(), 4);
    for (const int64_t epoch : {0, 3}) {
      for (int64_t lane = 0; lane < 3; ++lane) {
        std::vector<int64_t> all;
        for (int64_t step = 0; step < 4; ++step) {
          for (const int64_t example : seen_by(sampler, 4 * epoch + step, lane)) all.push_back(example);
        }
        std::sort(all.begin(), all.end());
        const ExampleRange& range = ranges[static_cast<size_t>(lane)];
        std::vector<int64_t> expected(static_cast<size_t>(range.size()));
        std::iota(expected.begin(), expected.end(), range.begin);
        EXPECT_EQ(all, expected);
      }
    }
    EXPECT_FALSE(sampler.fills_all_lanes(0));
  }
}

TEST(Sampler, with_ranges_shuffles_each_epoch_and_each_lane_in_another_way) {
  const Sampler sampler(2000, {.lanes = 2, .batch = 1000, .ranges = {{0, 1000}, {1000, 2000}}});
  const std::vector<int64_t> first = seen_by(sampler, 0, 0);
  std::vector<int64_t> of_other_lane = seen_by(sampler, 0, 1);
  for (int64_t& example : of_other_lane) example -= 1000;
  EXPECT_NE(first, of_other_lane);
  EXPECT_NE(first, seen_by(sampler, 1, 0));
  EXPECT_EQ(first, seen_by(sampler, 0, 0));
}

TEST(Sampler, with_ranges_drops_what_the_shortest_does_not_fill) {
  const std::vector<ExampleRange> ranges = {{0, 7}, {7, 12}};
  const Sampler sampler(12, {.lanes = 2, .batch = 2, .drop_remainder = true, .ranges = ranges});
  EXPECT_EQ(sampler.steps_per_epoch(), 2);
  EXPECT_TRUE(sampler.fills_all_lanes(1));
  EXPECT_TRUE(Sampler(12, {.lanes = 2, .batch = 3}).fills_all_lanes(1));
  EXPECT_FALSE(Sampler(12, {.lanes = 2, .batch = 5}).fills_all_lanes(1));
}

TEST(Sampler, with_ranges_refuses_what_is_none) {
  const auto refused = [](std::vector<ExampleRange> ranges) {
    expect_error(ErrorKind::InvalidArgument, ::testing::HasSubstr("range"),
                 [&] { Sampler(10, {.lanes = 2, .ranges = std::move(ranges)}); });
  };
  refused({{0, 10}});
  refused({{0, 5}, {5, 11}});
  refused({{-1, 5}, {5, 10}});
  refused({{5, 4}, {5, 10}});
}

std::vector<int64_t> all_of(const Permutation& permutation) {
  std::vector<int64_t> image;
  for (int64_t i = 0; i < permutation.size(); ++i) image.push_back(permutation(i));
  return image;
}

bool is_bijection(std::vector<int64_t> image) {
  std::sort(image.begin(), image.end());
  for (size_t i = 0; i < image.size(); ++i) {
    if (image[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Returns how far counts are from being equal, in standard deviations of Pearson's chi-square (k degrees:
// mean k, variance 2k).
double deviations_from_uniform(const std::vector<int64_t>& counts, double total) {
  const double expected = total / static_cast<double>(counts.size());
  double chi_square = 0.0;
  for (const int64_t count : counts) chi_square += (count - expected) * (count - expected) / expected;
  const auto degrees = static_cast<double>(counts.size() - 1);
  return (chi_square - degrees) / std::sqrt(2.0 * degrees);
}

TEST(Permutation, is_a_bijection_for_every_size_and_key) {
  for (int64_t size = 0; size <= 300; ++size) {
    for (const uint64_t key : {0ULL, 1ULL, 0xffffffffffffffffULL}) {
      EXPECT_TRUE(is_bijection(all_of(Permutation(size, key)))) << size << " key " << key;
    }
  }
  for (const int64_t size : {1023, 1024, 1025, 60000, 65536, 65537, 1000003}) {
    EXPECT_TRUE(is_bijection(all_of(Permutation(size, 7)))) << size;
  }
}

TEST(Permutation, stays_in_range_and_distinct_where_it_is_too_large_to_list) {
  for (const int64_t size : {int64_t{1'000'000'000'000}, (int64_t{1} << 62) - 1, int64_t{1} << 62}) {
    const Permutation permutation(size, 42);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 20000; ++i) {
      const int64_t image = permutation(size - 1 - i);
      EXPECT_GE(image, 0);
      EXPECT_LT(image, size);
      seen.insert(image);
    }
    EXPECT_EQ(seen.size(), 20000U);
  }
}

TEST(Permutation, sends_each_position_everywhere_equally_often) {
  constexpr int kKeys = 20000;
  for (const int64_t size : {2, 3, 5, 10, 37, 64, 100}) {
    for (const int64_t position : {int64_t{0}, size / 2, size - 1}) {
      std::vector<int64_t> counts(static_cast<size_t>(size));
      for (uint64_t key = 0; key < kKeys; ++key)
        ++counts[static_cast<size_t>(Permutation(size, key)(position))];
      EXPECT_LT(deviations_from_uniform(counts, kKeys), 5.0) << size << " at " << position;
    }
  }
}

TEST(Permutation, reaches_every_order_of_a_few_numbers_equally_often) {
  constexpr int kKeys = 60000;
  const std::map<int64_t, size_t> orders = {{3, 6}, {4, 24}, {5, 120}, {6, 720}};
  for (const auto& [size, count] : orders) {
    std::map<std::vector<int64_t>, int64_t> seen;
    for (uint64_t key = 0; key < kKeys; ++key) ++seen[all_of(Permutation(size, key))];
    ASSERT_EQ(seen.size(), count);
    std::vector<int64_t> counts;
    for (const auto& [order, times] : seen) counts.push_back(times);
    EXPECT_LT(deviations_from_uniform(counts, kKeys), 5.0) << size;
  }
}

TEST(Permutation, spreads_neighbours) {
  // Counts the distances between images of neighbours in 50 equal bins of the cumulative function of their
  // (triangular) distribution.
  constexpr int64_t kSize = 100000;
  const Permutation permutation(kSize, 3);
  std::vector<int64_t> counts(50);
  for (int64_t i = 0; i + 1 < kSize; i += 2) {
    const double distance = std::abs(static_cast<double>(permutation(i + 1) - permutation(i))) / kSize;
    const double share = distance * (2.0 - distance);
    ++counts[std::min<size_t>(49, static_cast<size_t>(share * 50.0))];
  }
  EXPECT_LT(deviations_from_uniform(counts, kSize / 2.0), 5.0);
}

TEST(Permutation, refuses_what_it_cannot_do) {
  error_of(ErrorKind::InvalidArgument, [] { Permutation(-1, 0); });
  error_of(ErrorKind::InvalidArgument, [] { Permutation((int64_t{1} << 62) + 1, 0); });
  for (const int64_t position : {int64_t{-1}, int64_t{5}, INT64_MIN}) {
    error_of(ErrorKind::Bug, [&] { Permutation(5, 0)(position); });
  }
  error_of(ErrorKind::Bug, [] { Permutation(0, 0)(0); });
}

std::vector<PartExample> all_of(const Arrangement& arrangement) {
  std::vector<PartExample> all;
  for (int64_t i = 0; i < arrangement.size; ++i) all.push_back(arrangement.at(i));
  return all;
}

TEST(Arrangement, skipping_leaves_out_the_first_examples) {
  const auto rest = skipping(5, 3);
  EXPECT_EQ(all_of(rest), (std::vector<PartExample>{{0, 3}, {0, 4}}));
  EXPECT_EQ(skipping(5, 9).size, 0);
}

TEST(Arrangement, one_after_another_passes_over_empty_parts) {
  const auto all = all_of(one_after_another({0, 2, 0, 1}));
  EXPECT_EQ(all, (std::vector<PartExample>{{1, 0}, {1, 1}, {3, 0}}));
}

TEST(Arrangement, ranges_of_one_random_order_are_disjoint) {
  std::set<int64_t> seen;
  for (const auto& [begin, end] : {std::pair{0, 30}, {30, 97}, {97, 100}}) {
    for (const PartExample& in : all_of(drawn(100, begin, end, 7))) seen.insert(in.example);
  }
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_EQ(*seen.rbegin(), 99);
  EXPECT_NE(all_of(drawn(100, 0, 30, 7)), all_of(drawn(100, 0, 30, 8)));
}

// Compares every range that starts at the beginning with the exact share.
TEST(Arrangement, interleaves_in_proportion_in_every_section) {
  const std::vector<std::vector<int64_t>> mixtures = {{1, 1}, {7, 3}, {1, 999}, {5, 1, 3}, {10, 20, 0, 30, 1},
                                                      {4}};
  for (const auto& counts : mixtures) {
    for (const int64_t seed : {1, 2, -5}) {
      const std::vector<int64_t> sizes(counts.size(), 1000);
      const auto mixture = interleaved(sizes, counts, seed);
      const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      ASSERT_EQ(mixture.size, all);
      const double depth = std::ceil(std::log2(static_cast<double>(counts.size())));
      std::vector<int64_t> so_far(counts.size());
      for (int64_t i = 0; i < all; ++i) {
        const PartExample in = mixture.at(i);
        ASSERT_EQ(in.example, so_far[in.part]++);
        for (size_t part = 0; part < counts.size(); ++part) {
          const double share =
              static_cast<double>(counts[part]) * static_cast<double>(i + 1) / static_cast<double>(all);
          ASSERT_LE(std::abs(static_cast<double>(so_far[part]) - share), depth + 1e-9) << i << " of " << all;
        }
      }
      EXPECT_EQ(so_far, counts);
    }
  }
}

TEST(Arrangement, interleaves_small_parts_several_times) {
  std::map<int64_t, int> times;
  for (const PartExample& in : all_of(interleaved({3, 100}, {10, 10}, 1))) {
    if (in.part == 0) ++times[in.example];
  }
  EXPECT_EQ(times, (std::map<int64_t, int>{{0, 4}, {1, 3}, {2, 3}}));
}

TEST(Arrangement, interleaves_more_examples_than_can_be_listed) {
  const int64_t many = int64_t{1} << 51;
  const auto mixture = interleaved({many, many}, {many, many}, 3);
  const PartExample last = mixture.at(2 * many - 1);
  const PartExample before = mixture.at(2 * many - 2);
  EXPECT_EQ(last.example, many - 1);
  EXPECT_EQ(before.example, many - 1);
  EXPECT_NE(last.part, before.part);
}

TEST(Arrangement, the_seed_decides_the_positions) {
  EXPECT_EQ(all_of(interleaved({50, 50}, {5, 17}, 1)), all_of(interleaved({50, 50}, {5, 17}, 1)));
  EXPECT_NE(all_of(interleaved({50, 50}, {5, 17}, 1)), all_of(interleaved({50, 50}, {5, 17}, 2)));
}

}  // namespace
}  // namespace tutti::data
