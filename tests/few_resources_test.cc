// Jobs that may have only so many processes, threads, open files, or bytes in a file.
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/together.h"

namespace tutti::testing::few_resources_test {
namespace {

using ::testing::AnyOf;
using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Range;
using ::testing::Values;

constexpr int kOverloaded = 13;
constexpr int kOfOpenMp = 1;

// The kind of the job, and the limit.
class FewResources : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static Words job() {
    const std::string& kind = std::get<0>(GetParam());
    Words launch = {program_path("tutti"), "run", "-n", kind == "workers" ? "2" : "1"};
    if (kind == "servers") launch = launch + Words{"--ps", "1"};
    launch =
        launch + Words{"--", together_program(), "--threads", "2", "--steps", "2", "--start-timeout", "20"};
    if (kind == "in-graph") launch = launch + Words{"--strategy", "in-graph"};
    return launch;
  }
  static int limit() { return std::get<1>(GetParam()); }

  // The job succeeds or is Overloaded, and nothing of it is left. If a thread that could be started a moment
  // before cannot be started any more, OpenMP itself says so and ends the task.
  void expect_a_good_end(const Words& command) const {
    const auto result = run_program(command, {mark_});
    if (result.exit_code != 0) {
      EXPECT_THAT(result.err, AnyOf(HasSubstr("Overloaded: "), HasSubstr("libgomp: Thread creation failed")));
      EXPECT_THAT(result.exit_code, AnyOf(kOverloaded, kOfOpenMp)) << result.out << result.err;
    }
    EXPECT_TRUE(processes_with(mark_).empty());
  }

 private:
  const std::string mark_ = fmt::format("TUTTI_TEST_MARK={}-few-resources", getpid());
};

class FewProcesses : public FewResources {};

// LibTorch waits forever for threads of its own that could not be started.
TEST_P(FewProcesses, are_enough_or_too_few_and_nobody_waits_forever) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can become a user without processes";
  const std::string user = std::to_string(1'000'000 + getpid());
  // LibTorch may be in root's cache, which other users may read only with this capability.
  const Words as_user = {"setpriv",        "--reuid",         user,
                         "--clear-groups", "--inh-caps",      "+dac_read_search",
                         "--ambient-caps", "+dac_read_search"};
  if (run_program(as_user + Words{together_program(), "--help"}).exit_code != 0)
    GTEST_SKIP() << "NOT TESTED: another user may not execute " << together_program();
  expect_a_good_end(as_user + Words{"prlimit", fmt::format("--nproc={}", limit())} + job());
}

INSTANTIATE_TEST_SUITE_P(Limits, FewProcesses, Combine(Values("workers", "servers"), Range(4, 40, 12)));
INSTANTIATE_TEST_SUITE_P(Soak, FewProcesses, Combine(Values("workers", "servers"), Range(4, 40, 4)));

class FewDescriptors : public FewResources {};

// A server that cannot accept a connection would be silent.
TEST_P(FewDescriptors, are_enough_or_too_few_and_nobody_waits_in_vain) {
  expect_a_good_end(Words{"prlimit", fmt::format("--nofile={}", limit())} + job());
}

INSTANTIATE_TEST_SUITE_P(Limits, FewDescriptors,
                         Combine(Values("workers", "servers", "in-graph"), Range(16, 80, 24)));
INSTANTIATE_TEST_SUITE_P(Soak, FewDescriptors,
                         Combine(Values("workers", "servers", "in-graph"), Range(16, 80, 8)));

class LittleMemory : public FewResources {};

// LibTorch allocates in threads of its own, in which nobody catches that memory has run out.
TEST_P(LittleMemory, is_enough_or_overloaded) {
  const Words limited = {"prlimit", fmt::format("--as={}", static_cast<int64_t>(limit()) * 1'000'000)};
  if (run_program(limited + Words{together_program(), "--help"}, {}, Crashes::AskedFor).exit_code != 0)
    GTEST_SKIP() << "NOT TESTED: not enough memory to load the program";
  expect_a_good_end(limited + job());
}

INSTANTIATE_TEST_SUITE_P(Limits, LittleMemory,
                         Combine(Values("workers", "servers", "in-graph"), Values(900, 1300)));
INSTANTIATE_TEST_SUITE_P(Soak, LittleMemory,
                         Combine(Values("workers", "servers", "in-graph"), Range(800, 1500, 200)));

class SmallFiles : public FewResources {};

// By default, the system kills a process whose file grows beyond the limit.
TEST_P(SmallFiles, are_enough_or_overloaded) {
  const TestFolder folder;
  expect_a_good_end(Words{"prlimit", fmt::format("--fsize={}", limit())} + job() +
                    Words{"--logdir", folder / "run", "--report", folder / "report.json"});
}

INSTANTIATE_TEST_SUITE_P(Limits, SmallFiles,
                         Combine(Values("workers", "servers", "in-graph"), Values(512, 20'000)));

}  // namespace
}  // namespace tutti::testing::few_resources_test
