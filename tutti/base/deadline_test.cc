#include "tutti/base/deadline.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace tutti::deadline_test {
namespace {

using std::chrono::milliseconds;

TEST(Deadline, seconds_are_rounded_up_and_saturate) {
  EXPECT_EQ(milliseconds_of(1.5), milliseconds(1500));
  EXPECT_EQ(milliseconds_of(1e-9), milliseconds(1));
  for (const double none : {0.0, -1.0, -1e300, std::nan(""), -std::numeric_limits<double>::infinity()})
    EXPECT_EQ(milliseconds_of(none), milliseconds(0)) << none;
  for (const double long_time : {1e10, 1e20, 1e308, std::numeric_limits<double>::infinity()})
    EXPECT_EQ(milliseconds_of(long_time), kLongestWait) << long_time;
}

TEST(Deadline, of_an_endless_wait_lies_in_the_future) {
  const auto now = std::chrono::steady_clock::now();
  EXPECT_GT(deadline_after(milliseconds::max()), now + std::chrono::hours(24));
  EXPECT_GT(until(deadline_after(milliseconds::max())), std::chrono::hours(24));
  EXPECT_GT(poll_time(deadline_after(milliseconds::max())), 1'000'000);
  EXPECT_EQ(until(deadline_after(milliseconds(-5))), milliseconds(0));
}

}  // namespace
}  // namespace tutti::deadline_test
