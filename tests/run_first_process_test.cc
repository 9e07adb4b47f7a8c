// Tests `tutti run` as the first process of a container, without an init process such as tini above it.
#include <csignal>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/run_job.h"
#include "tutti/base/file.h"

namespace tutti::testing::run_first_process_test {
namespace {

using ::testing::HasSubstr;

// Runs `tutti run` with the process id 1 in a namespace of processes.
class RunFirst : public Run {
 protected:
  void SetUp() override {
    const ProgramResult trial = run_program(in_namespace({"true"}));
    if (trial.exit_code != 0) GTEST_SKIP() << "NOTHING IS TESTED HERE: no namespaces: " << trial.err;
  }
  static Words in_namespace(const Words& command) {
    return Words{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"} + command;
  }
  std::unique_ptr<RunningProgram> start(const Words& flags, const std::string& script) const {
    return std::make_unique<RunningProgram>(in_namespace(command(flags, script)), Words{mark_});
  }
  // Sends a signal to the launcher, whose process id is 1 only inside.
  void signal(const RunningProgram& program, int number) const {
    const std::string path = fmt::format("/proc/{0}/task/{0}/children", program.pid());
    kill(std::stoi(read_system_file(path)), number);
  }
};

TEST_F(RunFirst, has_the_process_id_1_and_the_exit_code_of_the_job) {
  EXPECT_EQ(start({}, "test $PPID = 1")->wait(), 0);
  EXPECT_EQ(start({}, "exit 3")->wait(), 3);
}

// The kernel gives orphans to the first process, and they stay as zombies until it waits for them.
TEST_F(RunFirst, reaps_orphans) {
  const auto program = start({}, R"(for i in 1 2 3; do sh -c 'sleep 0.2 & exit'; done
sleep 1
cat /proc/[0-9]*/stat | grep -c ') Z '
true)");
  program->wait();
  EXPECT_EQ(program->out(), "0\n") << program->err();
}

TEST_F(RunFirst, passes_signals_on) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    const auto program =
        start({"-n", "2"}, "trap 'echo told; exit 7' TERM INT HUP; echo ready; while :; do sleep 0.1; done");
    program->wait_for_output("[worker/0] ready");
    program->wait_for_output("[worker/1] ready");
    signal(*program, number);
    EXPECT_EQ(program->wait(), 7);
    EXPECT_THAT(program->out(), HasSubstr("[worker/0] told"));
    EXPECT_THAT(program->out(), HasSubstr("[worker/1] told"));
  }
}

// To the first process the kernel sends no signal that it does not handle.
TEST_F(RunFirst, ends_at_the_signal_of_preempt_signal_and_ignores_it_otherwise) {
  const std::string script = "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.1; done";
  const auto with = start({"--preempt-signal", "USR1"}, script);
  with->wait_for_output("ready");
  signal(*with, SIGUSR1);
  EXPECT_EQ(with->wait(), 7);
  const auto without = start({}, script);
  without->wait_for_output("ready");
  signal(*without, SIGUSR1);
  signal(*without, SIGTERM);
  EXPECT_EQ(without->wait(), 7);
}

TEST_F(RunFirst, leaves_nobody_behind_when_it_is_killed) {
  const auto program = start({}, "setsid sleep 1000 & echo ready; wait");
  program->wait_for_output("ready");
  signal(*program, SIGKILL);
  EXPECT_NE(program->wait(), 0);
  EXPECT_TRUE(nobody_is_left());
}

}  // namespace
}  // namespace tutti::testing::run_first_process_test
