#include "tutti/train/schedule.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::schedules::schedule_test {
namespace {

TEST(Schedule, constant_is_the_same_at_every_step) {
  const Schedule rate = constant(0.1);
  EXPECT_EQ(rate(0), 0.1);
  EXPECT_EQ(rate(1000000), 0.1);
}

TEST(Schedule, steps_fall_by_the_factor_from_each_step_on) {
  const Schedule rate = steps(1, {10, 20}, 0.5);
  EXPECT_EQ(rate(9), 1);
  EXPECT_EQ(rate(10), 0.5);
  EXPECT_EQ(rate(19), 0.5);
  EXPECT_EQ(rate(20), 0.25);
  EXPECT_THROW(steps(1, {20, 10}), Error);
}

TEST(Schedule, decay_falls_in_a_straight_line_at_the_end) {
  const Schedule rate = decay(2, 70, 100);
  EXPECT_EQ(rate(69), 2);
  EXPECT_EQ(rate(70), 2);
  EXPECT_DOUBLE_EQ(rate(85), 1);
  EXPECT_EQ(rate(100), 0);
  EXPECT_EQ(decay(2, 5, 5)(4), 2);
  EXPECT_THROW(decay(2, 5, 4), Error);
}

TEST(Schedule, cosine_goes_from_rate_to_last_and_stays) {
  const Schedule rate = cosine(1, 100, 0.2);
  EXPECT_DOUBLE_EQ(rate(0), 1);
  EXPECT_NEAR(rate(50), 0.6, 1e-12);
  EXPECT_NEAR(rate(25), 0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
  EXPECT_DOUBLE_EQ(rate(100), 0.2);
  EXPECT_DOUBLE_EQ(rate(500), 0.2);
  EXPECT_THROW(cosine(1, 0), Error);
}

TEST(Schedule, warm_up_meets_what_follows) {
  const Schedule rate = warm_up(0.1, 10, constant(1.1));
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(5), 0.6);
  EXPECT_DOUBLE_EQ(rate(10), 1.1);
  EXPECT_DOUBLE_EQ(warm_up(0.1, 0, constant(1.1))(0), 1.1);
}

// The numbers of the paper: for 8,192 images the rate is 0.1 * 32 = 3.2, reached in equal increments.
TEST(Schedule, large_batch_scales_the_rate_with_the_batch_and_warms_up) {
  const Schedule rate =
      large_batch({.batch = 8192, .warm_up_steps = 780}, [](double r) { return steps(r, {4680}); });
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_NEAR(rate(1) - rate(0), (3.2 - 0.1) / 780, 1e-12);
  EXPECT_DOUBLE_EQ(rate(780), 3.2);
  EXPECT_NEAR(rate(4680), 0.32, 1e-12);
  EXPECT_THROW(large_batch({.batch = 0}), Error);
}

TEST(Schedule, takes_its_length_from_the_run) {
  const Schedule rate = cosine(1);
  EXPECT_TRUE(rate.follows_the_run());
  EXPECT_FALSE(rate.end());
  for (const int64_t length : {50, 200}) {
    for (const int64_t step : {int64_t{0}, length / 4, length / 2, length})
      EXPECT_EQ(rate(step, length), cosine(1, length)(step)) << step << " of " << length;
  }
  EXPECT_THROW(rate(0), Error);
  EXPECT_THROW(rate(0, std::numeric_limits<int64_t>::max()), Error) << "a run without an end";
  EXPECT_EQ(cosine(1, 100).end(), 100);
  EXPECT_EQ(cosine(1, 100)(50), cosine(1, 100)(50, 77)) << "a fixed length stays";
}

TEST(Schedule, has_shares_of_the_run_in_place_of_steps) {
  const Schedule rate = warm_up(0, share(0.1), decay(1, share(0.5)));
  EXPECT_DOUBLE_EQ(rate(0, 200), 0);
  EXPECT_DOUBLE_EQ(rate(10, 200), 0.5);
  EXPECT_DOUBLE_EQ(rate(20, 200), 1);
  EXPECT_DOUBLE_EQ(rate(100, 200), 1);
  EXPECT_DOUBLE_EQ(rate(150, 200), 0.5);
  EXPECT_DOUBLE_EQ(rate(200, 200), 0);
  EXPECT_DOUBLE_EQ(steps(1, {share(0.5), 90})(60, 100), 0.1);
  EXPECT_DOUBLE_EQ(steps(1, {share(0.5), 90})(95, 100), 0.01);
  EXPECT_EQ(warm_up(0, share(0.1), cosine(1, 70)).end(), 70);
  EXPECT_THROW(share(1.5), Error);
  EXPECT_THROW(share(-0.1), Error);
  EXPECT_THROW(share(std::nan("")), Error);
}

TEST(Schedule, may_be_a_function_of_the_step_or_of_the_length_as_well) {
  const Schedule by_step = [](int64_t step) { return 1.0 / static_cast<double>(step + 1); };
  EXPECT_FALSE(by_step.follows_the_run());
  EXPECT_DOUBLE_EQ(by_step(3), 0.25);
  const Schedule by_both = [](int64_t step, int64_t length) {
    return static_cast<double>(step) / static_cast<double>(length);
  };
  EXPECT_TRUE(by_both.follows_the_run());
  EXPECT_DOUBLE_EQ(by_both(3, 12), 0.25);
  EXPECT_FALSE(Schedule());
}

}  // namespace
}  // namespace tutti::schedules::schedule_test
