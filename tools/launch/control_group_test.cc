#include "tools/launch/control_group.h"

#include <cerrno>
#include <chrono>
#include <signal.h>
#include <sys/wait.h>
#include <thread>

#include <gmock/gmock.h>

#include "tools/launch/child.h"
#include "tools/launch/processes.h"

namespace tutti::control_group_test {
namespace {

Child start_in(const ControlGroup& group, const std::string& script) {
  ChildOptions options;
  options.environment = {"PATH=/usr/bin:/bin"};
  options.output = ChildOutput::Capture;
  options.group = group.entrance();
  return start_child({"sh", "-c", script}, options);
}

TEST(ControlGroup, ends_all_that_its_members_have_started_and_is_removed) {
  const auto group = ControlGroup::make();
  if (!group) GTEST_SKIP() << "NOT TESTED: no control group can be made here";
  const Child child = start_in(*group, "(env -i setsid sleep 1000 &); exec sleep 1000");
  EXPECT_FALSE(group->remove());
  group->kill_all();
  int status = 0;
  EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  // This process does not reap the other process.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  bool removed = false;
  while (!(removed = group->remove()) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(removed);
  EXPECT_TRUE(ControlGroup(group->path()).remove()) << "it is gone already";
}

TEST(Processes, a_signal_never_reaches_another_process_of_the_same_number) {
  const Child child = start_child({"sleep", "1000"}, {.output = ChildOutput::Capture});
  const auto process = process_state(child.pid);
  ASSERT_TRUE(process);
  EXPECT_EQ(process->name, "sleep");
  ProcessState former = *process;
  --former.started;
  EXPECT_EQ(send_signal(former, SIGKILL), ESRCH);
  EXPECT_EQ(send_signal(*process, SIGTERM), 0);
  int status = 0;
  EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_EQ(send_signal(*process, SIGKILL), ESRCH);
}

}  // namespace
}  // namespace tutti::control_group_test
