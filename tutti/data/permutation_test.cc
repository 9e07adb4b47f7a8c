#include "tutti/data/permutation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

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

}  // namespace
}  // namespace tutti::data
