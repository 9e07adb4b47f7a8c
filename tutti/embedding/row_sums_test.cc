#include "tutti/embedding/row_sums.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/step/tree_sum.h"

namespace tutti::embedding::row_sums_test {
namespace {

TEST(IndexRows, lists_each_key_once_with_its_lookups) {
  const std::vector<uint64_t> keys = {900, 7, kNoKey, 7, 0, 900, 7};
  const RowIndex index = index_rows(keys, 10);
  EXPECT_EQ(index.keys, (std::vector<uint64_t>{0, 7, 900}));
  EXPECT_EQ(index.row_of, (std::vector<int32_t>{2, 1, RowIndex::kNone, 1, 0, 2, 1}));
  EXPECT_EQ(index.begin, (std::vector<int32_t>{0, 1, 4, 6}));
  EXPECT_EQ(index.order, (std::vector<int32_t>{4, 1, 3, 6, 0, 5}));
}

TEST(IndexRows, sorts_long_lists_of_large_keys) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> keys(10000);
  for (uint64_t& key : keys) key = random() >> 13;
  for (size_t i = 0; i < 1000; ++i) keys[9 * i] = keys[i];
  const RowIndex index = index_rows(keys, 51);
  EXPECT_TRUE(std::is_sorted(index.keys.begin(), index.keys.end()));
  for (size_t i = 0; i < keys.size(); ++i)
    ASSERT_EQ(index.keys[static_cast<size_t>(index.row_of[i])], keys[i]);
}

TEST(IndexRows, of_no_lookups_is_empty) {
  EXPECT_EQ(index_rows({}, 5).rows(), 0);
  EXPECT_EQ(index_rows(std::vector<uint64_t>{kNoKey, kNoKey}, 5).rows(), 0);
}

// The ids and gradients of some lanes.
struct Lanes {
  int64_t dim = 3;
  std::vector<std::vector<uint64_t>> keys;  // [lane][lookup]
  std::vector<std::vector<float>> gradients;

  Lanes(int64_t lanes, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> number(-1, 1);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const size_t count = random() % 4 == 0 ? 0 : random() % 30;
      keys.emplace_back();
      gradients.emplace_back();
      for (size_t i = 0; i < count; ++i) keys.back().push_back(random() % 13);
      for (size_t i = 0; i < count * static_cast<size_t>(dim); ++i)
        gradients.back().push_back(number(random));
    }
  }

  // The sums of the lanes of one worker; rows are keys.
  RowSums of_worker(const LaneRange& range) const {
    std::vector<uint64_t> all;
    std::vector<const float*> pointers;
    std::vector<int64_t> ends;
    for (int64_t lane = range.begin; lane < range.end; ++lane) {
      const auto at = static_cast<size_t>(lane);
      for (size_t i = 0; i < keys[at].size(); ++i) {
        all.push_back(keys[at][i]);
        pointers.push_back(gradients[at].data() + i * static_cast<size_t>(dim));
      }
      ends.push_back(static_cast<int64_t>(all.size()));
    }
    const RowIndex index = index_rows(all, 4);
    RowSums sums = sum_lanes(index, dim, pointers, ends, range, static_cast<int64_t>(keys.size()));
    for (RowSum& sum : sums.sums) sum.row = static_cast<int64_t>(index.keys[static_cast<size_t>(sum.row)]);
    return sums;
  }

  std::map<int64_t, std::vector<float>> on(int world) const {
    std::vector<RowSums> parts;
    for (const LaneRange& range : lanes_of_all(world, static_cast<int64_t>(keys.size())))
      parts.push_back(of_worker(range));
    std::vector<RowSumsView> views;
    for (const RowSums& part : parts) views.push_back({part.sums, part.values});
    RowSums all = sum_workers(views, dim, static_cast<int64_t>(keys.size()));
    int64_t lookups = 0;
    for (const RowSum& sum : all.sums) lookups += sum.lookups;
    int64_t expected = 0;
    for (const auto& of_lane : keys) expected += static_cast<int64_t>(of_lane.size());
    EXPECT_EQ(lookups, expected);
    std::map<int64_t, std::vector<float>> rows;
    for (size_t i = 0; i < all.sums.size(); ++i) {
      const auto values = all.values_of(i);
      EXPECT_TRUE(rows.emplace(all.sums[i].row, std::vector<float>(values.begin(), values.end())).second);
    }
    return rows;
  }

  // The same by TreeSum, row by row.
  std::map<int64_t, std::vector<float>> by_tree() const {
    std::map<int64_t, std::vector<float>> rows;
    const auto lanes = static_cast<int64_t>(keys.size());
    for (uint64_t key = 0; key < 13; ++key) {
      const torch::Tensor vector = torch::zeros({dim});
      TreeSum sum({vector}, {0, lanes}, lanes);
      for (size_t lane = 0; lane < keys.size(); ++lane) {
        bool is_there = false;
        vector.zero_();
        for (size_t i = 0; i < keys[lane].size(); ++i) {
          if (keys[lane][i] != key) continue;
          is_there = true;
          for (int64_t k = 0; k < dim; ++k)
            vector[k] += gradients[lane][i * static_cast<size_t>(dim) + static_cast<size_t>(k)];
        }
        if (is_there)
          sum.add();
        else
          sum.skip();
      }
      const auto result = sum.finish();
      if (!result.front().values) continue;
      const auto* values = static_cast<const float*>((*result.front().values)[0].data_ptr());
      rows.emplace(static_cast<int64_t>(key), std::vector<float>(values, values + dim));
    }
    return rows;
  }
};

TEST(RowSums, are_those_of_the_tree_on_any_number_of_workers) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 13, 16}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Lanes lanes(count, seed);
      const auto expected = lanes.by_tree();
      for (const int world : {1, 2, 3, 4, 5, 8, 17})
        ASSERT_EQ(lanes.on(world), expected) << count << " " << world;
    }
  }
}

TEST(RowSums, are_divided_once) {
  const Lanes lanes(3, 5);
  const RowSums sums = lanes.of_worker({0, 3});
  const RowSumsView view{sums.sums, sums.values};
  RowSums mean = sum_workers({&view, 1}, lanes.dim, 3, 7);
  ASSERT_EQ(mean.sums.size(), sums.sums.size());
  for (size_t i = 0; i < mean.sums.size(); ++i) {
    const auto row = std::find_if(sums.sums.begin(), sums.sums.end(),
                                  [&](const RowSum& sum) { return sum.row == mean.sums[i].row; });
    const auto at = static_cast<size_t>((row - sums.sums.begin()) * lanes.dim);
    EXPECT_EQ(mean.values_of(i)[1], sums.values[at + 1] / 7.0F);
  }
}

TEST(RowSums, of_lookups_without_gradients_do_not_exist) {
  const RowIndex index = index_rows(std::vector<uint64_t>{4, 5, 4}, 3);
  const std::vector<float> gradient = {1, 2};
  const std::vector<const float*> pointers = {nullptr, nullptr, gradient.data()};
  const std::vector<int64_t> ends = {3};
  const RowSums sums = sum_lanes(index, 2, pointers, ends, {0, 1}, 1);
  ASSERT_EQ(sums.sums.size(), 1U);
  EXPECT_EQ(sums.sums[0].row, 0);
  EXPECT_EQ(sums.values, gradient);
}

}  // namespace
}  // namespace tutti::embedding::row_sums_test
