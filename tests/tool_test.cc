// Tests that the helper that starts programs fails a test in which one of them crashes.
#include "tests/tool.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

namespace tutti::testing::tool_test {
namespace {

Words shell(const std::string& script) { return {"sh", "-c", script}; }

TEST(Crash, of_the_program_fails_the_test) {
  for (const std::string signal : {"SEGV", "ABRT", "BUS", "FPE", "ILL"}) {
    EXPECT_NONFATAL_FAILURE(run_program(shell("kill -" + signal + " $$")), "has crashed by SIG" + signal);
    EXPECT_NONFATAL_FAILURE(run_program(shell("sh -c 'kill -" + signal + " $$'; exit $?")), "has crashed");
    run_program(shell("kill -" + signal + " $$"), {}, Crashes::AskedFor);
  }
  run_program(shell("kill -KILL $$"));
  run_program(shell("exit 1"));
}

// The job succeeds in the end.
TEST(Crash, of_a_task_that_was_started_again_fails_the_test) {
  const TestFolder folder;
  const std::string once = "cd " + folder.path() + "; if ! [ -e again ]; then touch again; kill -ABRT $$; fi";
  const Words command = Words{program_path("tutti"), "run", "-n", "2", "--restarts", "1", "--"} + shell(once);
  EXPECT_NONFATAL_FAILURE(EXPECT_EQ(run_program(command).exit_code, 0), "was killed by SIGABRT (Aborted)");
}

// The program is killed when nobody waits for it any more; the output so far is checked.
TEST(Crash, of_a_task_fails_a_test_that_does_not_wait_for_the_end) {
  const auto start = [] {
    RunningProgram program(shell("echo \"terminate called after throwing 'x'\"; exec sleep 1000"));
    program.wait_for_output("terminate");
  };
  EXPECT_NONFATAL_FAILURE(start(), "terminate called after throwing 'x'");
}

TEST(Crash, is_found_in_what_launchers_and_sanitizers_print) {
  EXPECT_EQ(crash_in("one\nmpirun noticed that rank 1 exited on signal 11 (Segmentation fault).\ntwo"),
            "mpirun noticed that rank 1 exited on signal 11 (Segmentation fault).");
  EXPECT_EQ(crash_in("SUMMARY: ThreadSanitizer: data race"), "SUMMARY: ThreadSanitizer: data race");
  EXPECT_EQ(crash_in("worker/1 was killed by SIGKILL (Killed)\nPeerLost: worker/1 is gone\n"), "");
}

}  // namespace
}  // namespace tutti::testing::tool_test
