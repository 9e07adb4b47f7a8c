// Tests the line that shows the progress in a terminal, which script(1) provides.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "tests/few_digits.h"
#include "tests/tool.h"

namespace tutti::testing::live_line_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kReplaces = "\r\x1b[K";

// Returns what a terminal gets from this command.
std::string in_terminal(const Words& command, const Words& environment = {"NO_COLOR=1"}) {
  const ProgramResult result =
      run_program({"script", "-qec", fmt::format("{}", fmt::join(command, " ")), "/dev/null"}, environment);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

// Prints a line, in quotes for a shell and for the shell that it calls.
Words run_shell(const std::string& script, const Words& flags = {}) {
  return Words{program_path("tutti"), "run", "-n", "2"} + flags + Words{"--", "sh", "-c", "'" + script + "'"};
}

const std::string kTwoTexts =
    R"(test $TUTTI_TASK_INDEX = 0 || exit 0; printf "10 of 20\r" >&2; sleep 0.5; printf "11 of 20\r" >&2; sleep 0.5; echo a line of the log; sleep 0.5; printf "20 of 20\n" >&2)";

TEST(LiveLine, of_a_task_stands_below_the_lines_of_the_log) {
  const std::string out = in_terminal(run_shell(kTwoTexts));
  EXPECT_THAT(out, HasSubstr(std::string(kReplaces) + "[worker/0] 10 of 20"));
  EXPECT_THAT(out, HasSubstr(std::string(kReplaces) + "[worker/0] a line of the log\r\n" + kReplaces +
                             "[worker/0] 1"));
  EXPECT_THAT(out, HasSubstr("[worker/0] 20 of 20\r\n"));
}

TEST(LiveLine, is_a_line_of_the_log_if_that_is_to_be_plain) {
  for (const std::string& out : {in_terminal(run_shell(kTwoTexts, {"--log", "plain"})),
                                 in_terminal(run_shell(kTwoTexts), {"TUTTI_LOG=plain"})})
    EXPECT_THAT(out, AllOf(HasSubstr("[worker/0] 10 of 20\r\n"), Not(HasSubstr(kReplaces))));
  const ProgramResult piped =
      run_program({"sh", "-c", fmt::format("{}", fmt::join(run_shell(kTwoTexts), " "))});
  EXPECT_THAT(piped.err, AllOf(HasSubstr("[worker/0] 10 of 20\n"), Not(HasSubstr("\r"))));
}

const Words kTraining = {
    program_path("mnist"), "--data", few_digits(), "--steps", "40", "--lanes", "2", "--batch", "10",
    "--threads",           "1"};

TEST(LiveLine, shows_steps_loss_speed_and_workers_of_a_training) {
  const std::string out = in_terminal(Words{program_path("tutti"), "run", "-n", "2", "--"} + kTraining);
  EXPECT_THAT(out, ContainsRegex("\\[worker/0\\] \\[=*>? *\\] step [0-9]+/40  loss [0-9.]+  [0-9,]+ "
                                 "examples/s  0:0[0-9] left  2 workers"));
  EXPECT_THAT(out, Not(HasSubstr("\x1b[32m")));
}

TEST(LiveLine, has_colours_unless_NO_COLOR_is_set) {
  EXPECT_THAT(in_terminal(kTraining, {"TERM=xterm"}), HasSubstr("[\x1b[32m===================="));
  EXPECT_THAT(in_terminal(kTraining), HasSubstr("[====================] step 40/40"));
  EXPECT_THAT(in_terminal(kTraining + Words{"--log", "plain"}), Not(HasSubstr("[=")));
}

}  // namespace
}  // namespace tutti::testing::live_line_test
