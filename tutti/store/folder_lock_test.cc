#include "tutti/store/folder_lock.h"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::store {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

// A process that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const FolderLock lock(folder, holder_name("worker/0"), milliseconds(0));
      static_cast<void>(!::write(ready[1], "x", 1));
      for (;;) ::pause();
    }
    char byte = 0;
    static_cast<void>(!::read(ready[0], &byte, 1));
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(FolderLock, keeps_a_second_process_out_and_says_who_has_it) {
  const TestFolder folder;
  const Holder holder(folder / "run");
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr(folder / "run"), HasSubstr("worker/0 on host"),
                     HasSubstr("pid " + std::to_string(holder.pid())), HasSubstr("store_test"),
                     HasSubstr("another --logdir")),
               [&] { FolderLock(folder / "run", "me", milliseconds(0)); });
}

TEST(FolderLock, of_a_killed_process_is_no_obstacle) {
  const TestFolder folder;
  Holder holder(folder / "run");
  holder.kill();
  EXPECT_TRUE(FolderLock(folder / "run", "me", milliseconds(0)).is_held());
}

TEST(FolderLock, waits_for_a_holder_that_is_on_its_way_out) {
  const TestFolder folder;
  auto holder = std::make_unique<Holder>(folder / "run");
  std::thread killer([&] { holder->kill(); });
  EXPECT_TRUE(FolderLock(folder / "run", "me", milliseconds(60000)).is_held());
  killer.join();
}

TEST(FolderLock, can_be_taken_away_from_a_process_that_is_stopped) {
  const TestFolder folder;
  const FolderLock former(folder.path(), "worker/0", milliseconds(0));
  EXPECT_TRUE(former.is_held());
  take_away_lock(folder.path());
  EXPECT_FALSE(former.is_held());
  const FolderLock next(folder.path(), "worker/1", milliseconds(0));
  EXPECT_TRUE(next.is_held());
  EXPECT_TRUE(former.is_taken_away());
  EXPECT_EQ(lock_holder(folder.path()), "worker/1");
}

TEST(FolderLock, is_not_taken_away_with_its_folder) {
  const TestFolder folder;
  const FolderLock lock(folder / "run", "me", milliseconds(0));
  EXPECT_FALSE(lock.is_removed());
  std::filesystem::remove_all(folder / "run");
  EXPECT_TRUE(lock.is_removed());
  make_directories(folder / "run");
  EXPECT_TRUE(lock.is_removed());
  EXPECT_FALSE(lock.is_taken_away());
  EXPECT_FALSE(lock.is_held());
}

TEST(FolderLock, is_released_with_its_object) {
  const TestFolder folder;
  { const FolderLock lock(folder / "run", "one", milliseconds(0)); }
  EXPECT_TRUE(FolderLock(folder / "run", "two", milliseconds(0)).is_held());
}

}  // namespace
}  // namespace tutti::store
