#include "tutti/data/arrangement.h"

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>

namespace tutti::data {
namespace {

std::vector<PartExample> all_of(const Arrangement& arrangement) {
  std::vector<PartExample> all;
  for (int64_t i = 0; i < arrangement.size(); ++i) all.push_back(arrangement.at(i));
  return all;
}

TEST(Arrangement, skipping_leaves_out_the_first_examples) {
  const auto rest = skipping(5, 3);
  EXPECT_EQ(all_of(*rest), (std::vector<PartExample>{{0, 3}, {0, 4}}));
  EXPECT_EQ(skipping(5, 9)->size(), 0);
}

TEST(Arrangement, one_after_another_passes_over_empty_parts) {
  const auto all = all_of(*one_after_another({0, 2, 0, 1}));
  EXPECT_EQ(all, (std::vector<PartExample>{{1, 0}, {1, 1}, {3, 0}}));
}

TEST(Arrangement, ranges_of_one_random_order_are_disjoint) {
  std::set<int64_t> seen;
  for (const auto& [begin, end] : {std::pair{0, 30}, {30, 97}, {97, 100}}) {
    for (const PartExample& in : all_of(*drawn(100, begin, end, 7))) seen.insert(in.example);
  }
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_EQ(*seen.rbegin(), 99);
  EXPECT_NE(all_of(*drawn(100, 0, 30, 7)), all_of(*drawn(100, 0, 30, 8)));
}

// Compares every stretch from the beginning with the exact share.
TEST(Arrangement, interleaves_in_proportion_in_every_stretch) {
  const std::vector<std::vector<int64_t>> mixtures = {{1, 1}, {7, 3}, {1, 999}, {5, 1, 3}, {10, 20, 0, 30, 1},
                                                      {4}};
  for (const auto& counts : mixtures) {
    for (const int64_t seed : {1, 2, -5}) {
      const std::vector<int64_t> sizes(counts.size(), 1000);
      const auto mixture = interleaved(sizes, counts, seed);
      const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      ASSERT_EQ(mixture->size(), all);
      const double depth = std::ceil(std::log2(static_cast<double>(counts.size())));
      std::vector<int64_t> so_far(counts.size());
      for (int64_t i = 0; i < all; ++i) {
        const PartExample in = mixture->at(i);
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
  for (const PartExample& in : all_of(*interleaved({3, 100}, {10, 10}, 1))) {
    if (in.part == 0) ++times[in.example];
  }
  EXPECT_EQ(times, (std::map<int64_t, int>{{0, 4}, {1, 3}, {2, 3}}));
}

TEST(Arrangement, interleaves_more_examples_than_can_be_listed) {
  const int64_t many = int64_t{1} << 51;
  const auto mixture = interleaved({many, many}, {many, many}, 3);
  const PartExample last = mixture->at(2 * many - 1);
  const PartExample before = mixture->at(2 * many - 2);
  EXPECT_EQ(last.example, many - 1);
  EXPECT_EQ(before.example, many - 1);
  EXPECT_NE(last.part, before.part);
}

TEST(Arrangement, the_seed_decides_the_positions) {
  EXPECT_EQ(all_of(*interleaved({50, 50}, {5, 17}, 1)), all_of(*interleaved({50, 50}, {5, 17}, 1)));
  EXPECT_NE(all_of(*interleaved({50, 50}, {5, 17}, 1)), all_of(*interleaved({50, 50}, {5, 17}, 2)));
}

}  // namespace
}  // namespace tutti::data
