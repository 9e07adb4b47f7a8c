#include "tutti/step/tree_sum.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::tree_sum_test {
namespace {

using Leaf = std::optional<float>;

// The tree written top down, from its definition, as an independent reference.
Leaf reference(const std::vector<Leaf>& leaves, int level, int64_t index) {
  const auto lanes = static_cast<int64_t>(leaves.size());
  const int64_t begin = index << level;
  if (begin >= lanes) return std::nullopt;
  if (level == 0) return leaves[static_cast<size_t>(begin)];
  const Leaf left = reference(leaves, level - 1, 2 * index);
  const Leaf right = reference(leaves, level - 1, 2 * index + 1);
  if (left && right) return *left + *right;
  return left ? left : right;
}

int root_level(int64_t lanes) {
  int level = 0;
  while ((int64_t{1} << level) < lanes) ++level;
  return level;
}

// Values whose sum depends on the order in which they are added.
std::vector<Leaf> leaves_of(int64_t lanes, uint64_t without_data) {
  std::vector<Leaf> leaves;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const float value =
        std::sin(static_cast<float>(lane) + 1) * std::pow(10.0F, static_cast<float>(lane % 7));
    leaves.push_back((without_data >> lane) & 1 ? Leaf() : Leaf(value));
  }
  return leaves;
}

std::vector<TreeSum::Subtree> run(TreeSum& sum, const torch::Tensor& vector, const std::vector<Leaf>& leaves,
                                  LaneRange range) {
  for (int64_t lane = range.begin; lane < range.end; ++lane) {
    const Leaf leaf = leaves[static_cast<size_t>(lane)];
    vector.fill_(leaf ? *leaf : std::nanf(""));
    leaf ? sum.add() : sum.skip();
  }
  return sum.finish();
}

TEST(TreeSum, one_worker_adds_along_the_tree_whatever_the_number_of_lanes) {
  for (int64_t lanes = 1; lanes <= 17; ++lanes) {
    const auto leaves = leaves_of(lanes, 0);
    const torch::Tensor vector = torch::empty({3});
    TreeSum sum({vector}, {0, lanes}, lanes);
    for (int step = 0; step < 3; ++step) {  // the memory of one step is reused by the next
      const auto sums = run(sum, vector, leaves, {0, lanes});
      ASSERT_EQ(sums.size(), 1U);
      EXPECT_EQ(vector[2].item<float>(), *reference(leaves, root_level(lanes), 0)) << lanes;
      EXPECT_TRUE((*sums[0].values)[0].is_same(vector));
    }
  }
}

TEST(TreeSum, lanes_without_data_are_exactly_neutral) {
  for (uint64_t without_data = 0; without_data < 64; ++without_data) {
    const auto leaves = leaves_of(6, without_data);
    const torch::Tensor vector = torch::empty({1});
    TreeSum sum({vector}, {0, 6}, 6);
    const auto sums = run(sum, vector, leaves, {0, 6});
    const Leaf expected = reference(leaves, root_level(6), 0);
    ASSERT_EQ(sums.size(), 1U);
    ASSERT_EQ(sums[0].values.has_value(), expected.has_value());
    if (expected) {
      EXPECT_EQ(vector.item<float>(), *expected) << without_data;
    }
  }
}

TEST(TreeSum, a_negative_zero_survives_lanes_without_data) {
  const torch::Tensor vector = torch::empty({1});
  TreeSum sum({vector}, {0, 4}, 4);
  run(sum, vector, {Leaf(), Leaf(-0.0F), Leaf(), Leaf()}, {0, 4});
  EXPECT_TRUE(std::signbit(vector.item<float>()));
}

// The sums of workers must be nodes of the tree, which together give the root.
TEST(TreeSum, ranges_of_any_world_are_whole_subtrees_with_the_same_root) {
  for (int64_t lanes : {1, 2, 3, 5, 8, 13, 16}) {
    const auto leaves = leaves_of(lanes, 0);
    for (int world = 1; world <= 9; ++world) {
      std::map<std::pair<int, int64_t>, float> nodes;
      for (int rank = 0; rank < world; ++rank) {
        const LaneRange range = lanes_of(rank, world, lanes);
        const torch::Tensor vector = torch::empty({2});
        TreeSum sum({vector}, range, lanes);
        const auto sums = run(sum, vector, leaves, range);
        EXPECT_LE(sums.size(), 2U * static_cast<size_t>(root_level(lanes)) + 1);
        for (const auto& node : sums)
          nodes[{node.place.level, node.place.index}] = (*node.values)[0][0].item<float>();
      }
      for (const auto& [place, value] : nodes) {
        EXPECT_EQ(value, *reference(leaves, place.first, place.second)) << lanes << " lanes, world " << world;
      }
    }
  }
}

TEST(TreeSum, sums_several_vectors_of_several_types_alike) {
  const torch::Tensor a = torch::empty({2});
  const torch::Tensor b = torch::empty({1}, torch::kFloat64);
  TreeSum sum({a, b}, {0, 3}, 3);
  for (int lane = 0; lane < 3; ++lane) {
    a.fill_(lane);
    b.fill_(10 * lane);
    sum.add();
  }
  sum.finish();
  EXPECT_EQ(a[0].item<float>(), 3);
  EXPECT_EQ(b.item<double>(), 30);
}

TEST(TreeSum, a_step_that_was_broken_off_leaves_nothing_behind) {
  const torch::Tensor vector = torch::zeros({1});
  TreeSum sum({vector}, {0, 3}, 3);
  vector.fill_(100);
  sum.add();
  sum.skip();
  sum.reset();
  run(sum, vector, {Leaf(1.F), Leaf(2.F), Leaf(4.F)}, {0, 3});
  EXPECT_EQ(vector.item<float>(), 7);
}

TEST(TreeSum, more_lanes_than_announced_are_a_bug) {
  const torch::Tensor vector = torch::zeros({1});
  TreeSum sum({vector}, {0, 1}, 1);
  sum.add();
  EXPECT_THROW(sum.add(), Error);
}

}  // namespace
}  // namespace tutti::tree_sum_test
