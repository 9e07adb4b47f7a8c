#include "tools/launch/group.h"

#include <chrono>
#include <fstream>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_folder.h"

namespace tutti::group_test {
namespace {

using std::chrono::milliseconds;
using testing::ContainsRegex;
using testing::HasSubstr;

// Holds a process in the kernel, so that SIGKILL does not end it: this object is its tracer, and never lets
// the process exit. Once this object is destroyed, the process ends too.
class Holder {
 public:
  // Waits for the process whose number is in the file `pid`, then creates the file `held`, or `refused` on
  // failure.
  explicit Holder(const TestFolder& folder) : pid_(fork()) {
    if (pid_ != 0) return;
    pid_t held = 0;
    while (!(std::ifstream(folder / "pid") >> held)) usleep(1000);
    const bool done = ptrace(PTRACE_SEIZE, held, nullptr, PTRACE_O_TRACEEXIT) == 0;
    std::ofstream(folder / (done ? "held" : "refused")) << "x";
    while (true) pause();
  }
  ~Holder() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
};

struct RunResult {
  GroupResult group;
  std::string err;
};

RunResult run_workers(const std::string& script, const GroupOptions& options) {
  SignalPipe signals({SIGCHLD, SIGTERM});
  const std::string guardian = "cat >/dev/null; while [ -d \"$2\" ] && ! rmdir \"$2\"; do sleep 0.1; done";
  JobWatch watch(-1, {"sh", "-c", guardian, "guardian"});
  const std::vector<TaskPlan> tasks = {{"worker/0", {{"INDEX", "0"}}, TaskRole::Worker},
                                       {"worker/1", {{"INDEX", "1"}}, TaskRole::Worker}};
  testing::internal::CaptureStderr();
  TaskGroup group({"sh", "-c", script}, Environment::of_process(), tasks, signals, watch, options);
  RunResult result{group.run(), ""};
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

TEST(TaskGroup, does_not_wait_for_ever_for_a_process_that_cannot_be_killed) {
  const TestFolder folder;
  const Holder holder(folder);
  const auto [group, err] =
      run_workers("cd " + folder.path() +
                      "; if [ $INDEX = 1 ]; then echo $$ >new; mv new pid; exec sleep 1000; fi"
                      "; until [ -e held ] || [ -e refused ]; do sleep 0.01; done; exit 3",
                  {.failure_grace = milliseconds(50), .kill_grace = milliseconds(100)});
  if (path_exists(folder / "refused")) GTEST_SKIP() << "NOT TESTED: ptrace of a process is not allowed here";
  EXPECT_EQ(group.exit_code, 3);
  EXPECT_TRUE(group.left_behind);
  EXPECT_THAT(err, HasSubstr("worker/1 (pid "));
  EXPECT_THAT(err, ContainsRegex("did not end after SIGKILL and is left behind \\(state [tR]"));
}

TEST(TaskGroup, does_not_wait_for_ever_for_a_grandchild_that_cannot_be_killed) {
  const TestFolder folder;
  const Holder holder(folder);
  const auto [group, err] = run_workers(
      "cd " + folder.path() +
          "; [ $INDEX = 0 ] || (setsid sh -c 'echo $$ >new; mv new pid; exec sleep 1000' >/dev/null 2>&1 &)"
          "; until [ -e held ] || [ -e refused ]; do sleep 0.01; done",
      {.failure_grace = milliseconds(50), .kill_grace = milliseconds(100)});
  if (path_exists(folder / "refused")) GTEST_SKIP() << "NOT TESTED: ptrace of a process is not allowed here";
  EXPECT_EQ(group.exit_code, 0);
  EXPECT_TRUE(group.left_behind);
  EXPECT_THAT(err, ContainsRegex(
                       "was started by a task, did not end after SIGKILL and is left behind \\(state [tR]"));
}

TEST(TaskGroup, kills_a_stopped_task_after_a_signal) {
  const TestFolder folder;
  const auto [group, err] =
      run_workers("cd " + folder.path() +
                      "; if [ $INDEX = 1 ]; then echo $$ >new; mv new pid; kill -STOP $$; fi"
                      "; until grep -q '^State:.T' /proc/$(cat pid)/status; do sleep 0.01; done"
                      "; kill -TERM $PPID; sleep 1000",
                  {.interrupt_grace = milliseconds(100)});
  EXPECT_TRUE(group.interrupted);
  EXPECT_FALSE(group.left_behind);
  EXPECT_THAT(err, HasSubstr("was stopped by SIGSTOP"));
}

TEST(TaskGroup, names_a_task_that_it_kills_after_a_signal) {
  const auto [group, err] = run_workers("trap '' TERM; [ $INDEX = 1 ] || kill -TERM $PPID; sleep 1000",
                                        {.interrupt_grace = milliseconds(100)});
  EXPECT_TRUE(group.interrupted);
  EXPECT_THAT(err, HasSubstr("did not end in time: killing it"));
}

}  // namespace
}  // namespace tutti::group_test
