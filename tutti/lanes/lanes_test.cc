#include "tutti/lanes/lanes.h"

#include <set>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::lanes_test {
namespace {

TEST(Lanes, ranges_are_contiguous_even_and_cover_every_lane) {
  for (int64_t lanes = 1; lanes <= 17; ++lanes) {
    for (int world = 1; world <= 19; ++world) {
      int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const LaneRange range = lanes_of(rank, world, lanes);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), lanes / world);
        EXPECT_LE(range.size(), lanes / world + 1);
        next = range.end;
      }
      EXPECT_EQ(next, lanes);
    }
  }
}

TEST(Lanes, a_rank_outside_the_world_is_an_error) {
  EXPECT_THROW(lanes_of(2, 2, 4), Error);
  EXPECT_THROW(lanes_of(-1, 2, 4), Error);
  EXPECT_THROW(lanes_of(0, 1, 0), Error);
}

TEST(Lanes, every_lane_and_step_has_its_own_random_stream) {
  std::set<uint64_t> seeds;
  for (int64_t seed = -2; seed <= 2; ++seed) {
    for (int64_t step = 0; step < 100; ++step) {
      for (int64_t lane = 0; lane < 16; ++lane) seeds.insert(lane_seed(seed, step, lane));
    }
  }
  EXPECT_EQ(seeds.size(), 5U * 100U * 16U);
}

}  // namespace
}  // namespace tutti::lanes_test
