#include "tutti/base/waiting.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::waiting_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Work>
std::string log_of(const Work& work) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

constexpr milliseconds kAtOnce{0};

TEST(Reminder, names_all_who_are_missing) {
  Reminder reminder(Log(), kLongestWait, kAtOnce);
  EXPECT_THAT(log_of([&] {
                reminder.still_missing({"ps/0 (h:1)", "ps/1 (h:2)"});
              }),
              HasSubstr("still waiting for ps/0 (h:1); ps/1 (h:2)\n"));
}

TEST(Reminder, is_silent_until_a_line_is_due) {
  Reminder reminder(Log(), kLongestWait);
  EXPECT_EQ(log_of([&] { reminder.still_missing({"ps/0"}); }), "");
  EXPECT_GT(reminder.until_next(), milliseconds(0));
  EXPECT_FALSE(reminder.nobody_is_missing());
}

TEST(Reminder, writes_a_last_line_about_each_who_is_missing) {
  Reminder reminder(Log(), kAtOnce, kAtOnce);
  EXPECT_THAT(log_of([&] { reminder.still_missing({"ps/0"}); }),
              AllOf(HasSubstr("ps/0"), HasSubstr("waits on"), HasSubstr("`tutti stop`")));
  EXPECT_EQ(log_of([&] { reminder.still_missing({"ps/0"}); }), "");
  EXPECT_THAT(log_of([&] { reminder.still_missing({"ps/1"}); }), HasSubstr("ps/1"));
  EXPECT_TRUE(reminder.nobody_is_missing());
  EXPECT_FALSE(reminder.nobody_is_missing());
  EXPECT_THAT(log_of([&] { reminder.still_missing({"ps/1"}); }), HasSubstr("ps/1"));
}

TEST(Waiting, ends_with_the_names_the_time_and_the_flag) {
  Waiting waiting(Log(LogLevel::Off), kAtOnce, "--start-timeout");
  expect_error(ErrorKind::Timeout, "waited in vain for 0 s (--start-timeout) for worker/0 (h:1)",
               [&] { waiting.go_on({"worker/0 (h:1)"}); });
  expect_error(ErrorKind::Timeout, "waited in vain for 0 s (--start-timeout) for\n  ps/0\n  ps/1", [&] {
    waiting.go_on({"ps/0", "ps/1"});
  });
}

TEST(Waiting, goes_on_until_then_and_says_at_its_end_only_what_was_asked_for) {
  Waiting waiting(Log(), kLongestWait, "--timeout");
  EXPECT_EQ(log_of([&] {
              waiting.go_on({"ps/0"});
              waiting.end("all are there");
            }),
            "");
  EXPECT_GT(waiting.patience(), milliseconds(0));
  EXPECT_LE(waiting.patience(), kBetweenReminders);
}

}  // namespace
}  // namespace tutti::waiting_test
