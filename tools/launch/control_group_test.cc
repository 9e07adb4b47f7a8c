#include "tools/launch/control_group.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "tools/launch/child.h"
#include "tools/launch/job_watch.h"
#include "tools/launch/processes.h"
#include "tutti/base/error.h"

namespace tutti::control_group_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(ControlGroup, is_removed_if_there_are_too_few_descriptors_to_start_a_guardian) {
  const auto group = ControlGroup::make();
  if (!group) GTEST_SKIP() << "NOT TESTED: no control group can be made here";
  EXPECT_TRUE(group->remove());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = FileDescriptor(open("/dev/null", O_RDONLY)).get();
  // Enough to make a group and to look at processes, but not for a guardian's pipes.
  const rlimit few{static_cast<rlim_t>(next + 2), before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  EXPECT_THROW(JobWatch(-1, {"sleep", "1000"}), Error);
  setrlimit(RLIMIT_NOFILE, &before);
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(group->path()).parent_path()))
    EXPECT_THAT(entry.path().string(), Not(HasSubstr(fmt::format("/tutti-{}-", getpid()))));
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
