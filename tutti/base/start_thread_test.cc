#include "tutti/base/start_thread.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tutti::start_thread_test {
namespace {

TEST(RequireThreads, does_nothing_if_there_can_be_so_many) { EXPECT_NO_THROW(require_threads(5, "a test")); }

#ifdef __SANITIZE_THREAD__
constexpr rlim_t kThreads = 2;  // the first, and one of the sanitizer
#else
constexpr rlim_t kThreads = 1;
#endif

// Runs in a process of a user without other processes, who may start three threads besides these.
TEST(RequireThreads, is_overloaded_if_not_all_can_be_started_at_the_same_time) {
  if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: only root can become a user without processes";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{kThreads + 3, kThreads + 3};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setuid(static_cast<uid_t>(1'000'000 + getpid())) != 0)
      _exit(1);
    try {
      require_threads(3, "a test");
    } catch (const Error&) {
      _exit(2);
    }
    try {
      require_threads(4, "a test");
    } catch (const Error& error) {
      _exit(error.kind() == ErrorKind::Overloaded ? 0 : 3);
    }
    _exit(4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tutti::start_thread_test
