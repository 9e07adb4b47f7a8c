#include "tutti/base/log.h"

#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/text.h"

namespace tutti::log_test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

template <class Work>
std::string stderr_of(const Work& work) {
  testing::internal::CaptureStderr();
  work();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, writes_time_task_level_and_text) {
  const Log log(LogLevel::Debug, "worker/2");
  const std::string lines = stderr_of([&] {
    log.info("loss {:.2f}", 0.5);
    log.warning("late");
  });
  EXPECT_THAT(lines, MatchesRegex("[0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9] worker/2 loss 0\\.50\n"
                                  "[0-9:.]* worker/2 warning: late\n"));
}

TEST(Log, alone_a_process_has_no_name) {
  EXPECT_THAT(stderr_of([] { Log().info("hello"); }), MatchesRegex("[0-9:.]* hello\n"));
}

TEST(Log, leaves_out_what_is_below_its_level) {
  const Log quiet(LogLevel::Warning);
  EXPECT_EQ(stderr_of([&] { quiet.debug("a"), quiet.info("b"); }), "");
  EXPECT_THAT(stderr_of([&] { quiet.error("c"); }), HasSubstr("error: c"));
  const Log silent(LogLevel::Off);
  EXPECT_EQ(stderr_of([&] { silent.error("d"); }), "");
  EXPECT_FALSE(silent.enabled(LogLevel::Error));
}

TEST(Log, lines_of_several_threads_do_not_mix) {
  const Log log(LogLevel::Info, "t");
  const std::string body(200, 'x');
  const std::string text = stderr_of([&] {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 100; ++n) log.info("{}", body);
      });
    }
  });
  const std::vector<std::string> lines = split(text, '\n');
  ASSERT_EQ(lines.size(), 401U);
  for (size_t i = 0; i < 400; ++i) ASSERT_TRUE(lines[i].ends_with(" t " + body)) << lines[i];
}

TEST(Log, reads_its_levels) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::Debug);
  EXPECT_EQ(parse_log_level("off"), LogLevel::Off);
  EXPECT_EQ(log_level_names().size(), 5U);
  for (const std::string& name : log_level_names()) EXPECT_NO_THROW(parse_log_level(name));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'warning'?"),
               [] { parse_log_level("warnin"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("''"), [] { parse_log_level(""); });
}

}  // namespace
}  // namespace tutti::log_test
