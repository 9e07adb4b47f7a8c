#include "tutti/cluster/threads.h"

#include <functional>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tutti/base/cores.h"

namespace tutti {
namespace {

int cores_now() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

void keep_only(int wanted) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  int kept = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores) && ++kept > wanted) CPU_CLR(core, &cores);
  }
  sched_setaffinity(0, sizeof(cores), &cores);
}

// Returns the result of `ask` in a child with `own` cores, whose parent has `together` cores.
int in_grandchild(int together, int own, const std::function<int()>& ask) {
  const pid_t parent = fork();
  if (parent == 0) {
    keep_only(together);
    const pid_t child = fork();
    if (child == 0) {
      keep_only(own);
      _exit(ask());
    }
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  waitpid(parent, &status, 0);
  return WEXITSTATUS(status);
}

int share_in_child(int together, int own, int local_world) {
  return in_grandchild(together, own, [&] { return share_of_cores(local_world); });
}

TEST(Cores, are_shared_equally_and_never_none) {
  EXPECT_GE(share_of_cores(1), 1);
  EXPECT_LE(share_of_cores(1), cores_now());
  EXPECT_EQ(share_of_cores(1'000'000), 1);
  EXPECT_EQ(share_of_cores(0), share_of_cores(1));
}

TEST(Cores, a_task_alone_has_all_that_it_may_use) {
  EXPECT_EQ(share_in_child(1, 1, 1), 1);
  EXPECT_EQ(share_in_child(cores_now(), cores_now(), 1), cores_now());
}

TEST(Cores, a_launcher_that_gave_each_task_its_own_is_not_divided_again) {
  const int all = cores_now();
  if (all < 2) GTEST_SKIP() << "takes 2 cores";
  EXPECT_EQ(share_in_child(all, all / 2, 2), all / 2);
  EXPECT_EQ(share_in_child(all, all, 2), all / 2);
  EXPECT_EQ(share_in_child(all, 1, 1), 1);
}

TEST(Cores, each_task_has_one_where_its_launcher_has_enough) {
  const auto in_child = [](int together, int own, int local_world) {
    return in_grandchild(together, own, [&] { return have_a_core_each(local_world) ? 1 : 0; });
  };
  const int all = cores_now();
  EXPECT_EQ(in_child(all, 1, all), 1);  // each pinned to one core
  EXPECT_EQ(in_child(all, all, all), 1);
  EXPECT_EQ(in_child(all, all, all + 1), 0);
  EXPECT_EQ(in_child(1, 1, 1), 1);
  EXPECT_EQ(in_child(1, 1, 2), 0);
}

}  // namespace
}  // namespace tutti
