// Tests saves that are interrupted: by a kill, or by a file system that is full or read-only.

#include <array>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <sched.h>
#include <set>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/store/test_checkpoint.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kNotAllowed = 77;

pid_t fork_child(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

enum class Outcome { Killed, Ended, NotTraceable };

// Saves in a child process that is killed at its stop number `stop`; each system call stops it once at its
// beginning and once at its end.
Outcome save_and_kill(CheckpointDir& directory, const Checkpoint& checkpoint, int stop) {
  const pid_t pid = fork_child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return kNotAllowed;
    std::raise(SIGSTOP);
    directory.save(checkpoint);
    return 0;
  });
  int status = wait_for(pid);
  for (int stops = 0; WIFSTOPPED(status); ++stops) {
    if (stops == stop) {
      ::kill(pid, SIGKILL);
      wait_for(pid);
      return Outcome::Killed;
    }
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    status = wait_for(pid);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Outcome::Ended : Outcome::NotTraceable;
}

// Saves `second` after `first` and kills the process at every system call in turn. One of the two has to
// remain, complete, without any damaged checkpoint, and the next save has to leave a tidy directory.
void expect_whole_after_every_kill(const Checkpoint& first, const Checkpoint& second, int keep) {
  std::set<int64_t> seen;
  for (int stop = 0;; ++stop) {
    const TestFolder folder;
    CheckpointDir directory(folder.path(), {.keep = keep});
    directory.save(first);
    const Outcome outcome = save_and_kill(directory, second, stop);
    if (outcome == Outcome::NotTraceable)
      GTEST_SKIP() << "ptrace is not allowed here: not killed at every call";

    const auto loaded = directory.load_latest();
    ASSERT_TRUE(loaded.checkpoint) << "killed at stop " << stop;
    EXPECT_THAT(loaded.skipped, IsEmpty()) << "killed at stop " << stop;
    seen.insert(loaded.checkpoint->step * 1000 + checked_mark(*loaded.checkpoint));
    EXPECT_TRUE(fs::exists(folder / "latest/manifest.json") || first.step == second.step) << stop;

    directory.save(checkpoint_of(9));
    for (const std::string& name : names_in(folder.path())) {
      EXPECT_TRUE(name == "latest" || name.starts_with("ckpt-")) << name << " after stop " << stop;
      EXPECT_FALSE(name.ends_with(".replaced") && fs::exists(folder / "ckpt-1")) << name;
    }
    if (outcome == Outcome::Ended) break;
    ASSERT_FALSE(testing::Test::HasFailure()) << "killed at stop " << stop;
  }
  EXPECT_EQ(seen.size(), 2U)
      << "the kills should have come both before and after the new checkpoint was there";
}

TEST(Crash, a_kill_at_any_system_call_leaves_a_whole_checkpoint) {
  expect_whole_after_every_kill(checkpoint_of(1), checkpoint_of(2), 5);
}

TEST(Crash, a_kill_while_the_only_checkpoint_gives_way_leaves_a_whole_one) {
  expect_whole_after_every_kill(checkpoint_of(1), checkpoint_of(2), 1);
}

TEST(Crash, a_kill_while_a_checkpoint_is_replaced_leaves_a_whole_one) {
  expect_whole_after_every_kill(checkpoint_of(1, 1), checkpoint_of(1, 2), 5);
}

// Runs many writers in sequence, each of which continues after the checkpoint of the previous one.
TEST(Crash, kills_at_random_times_lose_no_finished_checkpoint) {
  const TestFolder folder;
  CheckpointDir directory(folder.path(), {.keep = 2});
  std::mt19937 random(1);
  for (int round = 0; round < 25; ++round) {
    const auto before = directory.load_latest().checkpoint;
    const int64_t start = before ? before->step + 1 : 1;
    std::array<int, 2> finished{};
    ASSERT_EQ(::pipe(finished.data()), 0);
    const pid_t pid = fork_child([&] {
      for (int64_t step = start;; ++step) {
        directory.save(checkpoint_of(step, 0, 80000));
        if (::write(finished[1], &step, sizeof(step)) != sizeof(step)) return 1;
      }
    });
    ::close(finished[1]);
    int64_t last = 0;
    ASSERT_EQ(::read(finished[0], &last, sizeof(last)), static_cast<ssize_t>(sizeof(last)));
    ::usleep(std::uniform_int_distribution<useconds_t>(0, 20000)(random));
    ::kill(pid, SIGKILL);
    wait_for(pid);
    while (::read(finished[0], &last, sizeof(last)) > 0) {
    }
    ::close(finished[0]);

    const auto loaded = directory.load_latest();
    ASSERT_TRUE(loaded.checkpoint);
    EXPECT_THAT(loaded.skipped, IsEmpty());
    EXPECT_EQ(checked_mark(*loaded.checkpoint), 0);
    EXPECT_GE(loaded.checkpoint->step, last);
    EXPECT_LE(loaded.checkpoint->step, last + 1);
  }
}

// Runs `body` in a child with a small file system at `path`, which only the child sees and which ends with
// it.
void with_own_file_system(const std::string& path, const std::string& options,
                          const std::function<void()>& body) {
  const pid_t pid = fork_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kNotAllowed;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kNotAllowed;
    if (::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) != 0) return kNotAllowed;
    body();
    std::cout << std::flush;
    return testing::Test::HasFailure() ? 1 : 0;
  });
  const int status = wait_for(pid);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed)
    GTEST_SKIP() << "mounting is not allowed here: not tried on a real one";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Crash, a_full_disk_is_told_and_leaves_what_was_there) {
  const TestFolder folder;
  with_own_file_system(folder.path(), "size=256k", [&] {
    CheckpointDir directory(folder.path());
    directory.save(checkpoint_of(1));
    expect_error(ErrorKind::Overloaded, AllOf(HasSubstr("step 2"), HasSubstr("No space left on device")),
                 [&] { directory.save(checkpoint_of(2, 0, 80000)); });
    EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"ckpt-1", "latest"}));
    EXPECT_EQ(directory.load_latest().checkpoint->step, 1);
    directory.save(checkpoint_of(3));
    EXPECT_EQ(directory.load_latest().checkpoint->step, 3);
  });
}

TEST(Crash, a_read_only_directory_is_told_and_read) {
  const TestFolder folder;
  with_own_file_system(folder.path(), "size=256k", [&] {
    CheckpointDir directory(folder.path());
    directory.save(checkpoint_of(1));
    ASSERT_EQ(::mount("none", folder.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr(folder.path()), HasSubstr("Read-only file system")),
                 [&] { directory.save(checkpoint_of(2)); });
    EXPECT_EQ(directory.load_latest().checkpoint->step, 1);
  });
}

}  // namespace
}  // namespace tutti::store
