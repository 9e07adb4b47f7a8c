#include "tools/launch/restart_pause.h"

#include <gtest/gtest.h>

namespace tutti::restart_pause_test {
namespace {

using std::chrono::seconds;

TEST(RestartPause, doubles_up_to_a_minute) {
  RestartPause pause;
  for (const int expected : {0, 1, 2, 4, 8, 16, 32, 60, 60})
    EXPECT_EQ(pause.next(seconds(1)).count(), expected);
}

TEST(RestartPause, begins_again_after_a_start_that_has_lasted) {
  RestartPause pause;
  for (int failures = 0; failures < 5; ++failures) pause.next(seconds(60));
  EXPECT_EQ(pause.next(seconds(61)).count(), 0);
  EXPECT_EQ(pause.next(seconds(1)).count(), 1);
}

TEST(RestartPause, is_described_if_there_is_one) {
  EXPECT_EQ(describe_pause(seconds(0)), "");
  EXPECT_EQ(describe_pause(seconds(16)), " in 16 s");
}

}  // namespace
}  // namespace tutti::restart_pause_test
