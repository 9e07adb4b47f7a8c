#include "tutti/store/folder_lock.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <random>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/base/this_host.h"

namespace tutti::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestCommand = 400;
constexpr const char* kLockName = "/lock";

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text.data();
}

// Returns the command line of this process. A secret in it is replaced by "...".
std::string command() {
  constexpr std::string_view kSecret = "--secret";
  const std::vector<std::string> arguments = split(read_system_file("/proc/self/cmdline"), '\0');
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool after_secret = i > 0 && arguments[i - 1] == kSecret;
    std::string argument = after_secret ? "..." : arguments[i];
    if (argument.starts_with(std::string(kSecret) + "=")) argument = "--secret=...";
    if (!argument.empty()) text += (text.empty() ? "" : " ") + argument;
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (text.size() <= kLongestCommand) return text;
  text.resize(kLongestCommand);
  return text.append("...");
}

std::string read_holder(const std::string& path) {
  try {
    const std::string text = read_file(path);
    return text.empty() ? "another process" : text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "another process";
  }
}

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryPrefix = ".tutti-temporary-";

bool same_file(const FileDescriptor& fd, const std::string& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

// Creates a folder. Returns false if the name is taken.
bool make_folder(const std::string& path) {
  constexpr mode_t kAllForAll = 0777;
  if (::mkdir(path.c_str(), kAllForAll) == 0) return true;
  if (errno == EEXIST) return false;
  fail_errno(errno, fmt::format("making the directory {}", path));
}

// Locks a new folder. Returns nullopt if another process removed it as a leftover before it was locked.
std::optional<FileDescriptor> lock_own(const std::string& path) {
  try {
    FileDescriptor fd(path, O_RDONLY | O_DIRECTORY);
    // If the file system has no locks, flock fails, and other processes cannot take the folder for a leftover
    // either.
    while (::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
    if (same_file(fd, path)) return fd;
  } catch (const Error&) {
    if (path_exists(path)) throw;
  }
  return std::nullopt;
}

std::vector<std::string> temporary_folders(const std::string& parent) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().starts_with(kTemporaryPrefix))
      paths.push_back(entry->path().string());
  }
  return paths;
}

bool is_left_over(const FileDescriptor& fd) { return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0; }

}  // namespace

FolderLock::FolderLock(const std::string& folder, const std::string& who, std::chrono::milliseconds patience)
    : folder_(folder) {
  constexpr std::chrono::milliseconds kPause{20};
  make_directories(folder);
  folder_fd_ = FileDescriptor(folder, O_PATH | O_DIRECTORY);
  const std::string path = folder + kLockName;
  const auto try_once = [&] {
    fd_ = FileDescriptor(path, O_RDWR | O_CREAT);
    const LockResult result = try_to_lock(fd_, path);
    return result == LockResult::Locked && !same_file(fd_, path) ? LockResult::Taken : result;
  };
  const auto deadline = Clock::now() + patience;
  for (LockResult result = try_once(); result != LockResult::Locked; result = try_once()) {
    if (result == LockResult::Unsupported) return;
    if (Clock::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    fail(ErrorKind::InvalidArgument,
         "the log directory {} is in use by {}. Two jobs would overwrite and resume each other's "
         "checkpoints: wait for it, stop it, or give another --logdir",
         folder, read_holder(path));
  }
  held_ = true;
  if (::ftruncate(fd_.get(), 0) != 0) fail_errno(errno, fmt::format("writing {}", path));
  write_at(fd_, path, 0, as_bytes(who + "\n"));
}

bool FolderLock::is_taken_away() const {
  return held_ && !is_removed() && !same_file(fd_, folder_ + kLockName);
}

bool FolderLock::is_removed() const { return held_ && !same_file(folder_fd_, folder_); }

// The next holder makes another file. The lock goes first: who makes a temporary folder later sees that.
void take_away_lock(const std::string& folder) {
  std::error_code ignored;  // another process was faster
  fs::remove(folder + kLockName, ignored);
  for (const std::string& temporary : temporary_folders(folder)) {
    const std::string taken = temporary + "-taken";
    fs::rename(temporary, taken, ignored);  // at once, for a process that still fills it
    fs::remove_all(taken, ignored);
  }
}

// Takes a shared lock for a moment, as other callers of this function may do at the same time; a process that
// wants an exclusive lock tries again.
std::optional<std::string> lock_holder(const std::string& folder) {
  const std::string path = folder + kLockName;
  if (!path_exists(path)) return std::nullopt;
  const FileDescriptor fd(path, O_RDONLY);
  while (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? std::optional(read_holder(path)) : std::nullopt;
  }
  return std::nullopt;
}

std::string holder_name(const std::string& task) {
  return fmt::format("{} on host {}, pid {}, since {}: {}", task, host_name(), ::getpid(), now(), command());
}

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::function<void()>& check) {
  // A lost task may still write into an earlier folder by its name, so no name is used twice.
  std::random_device random;
  for (;;) {
    const std::string path =
        fmt::format("{}/{}{}-{:08x}{:08x}", parent, kTemporaryPrefix, ::getpid(), random(), random());
    if (!make_folder(path)) continue;
    auto lock = lock_own(path);
    if (!lock) continue;
    path_ = path;
    lock_ = std::move(*lock);
    break;
  }
  try {
    if (check) check();
  } catch (...) {
    remove();
    throw;
  }
}

TemporaryFolder::~TemporaryFolder() { remove(); }

void TemporaryFolder::remove() {
  std::error_code ignored;  // remove_leftovers() removes the rest later
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void TemporaryFolder::rename_to(const std::string& target) {
  rename_path(path_, target);
  path_.clear();
}

bool TemporaryFolder::exchange_with(const std::string& target) {
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail_errno(errno, fmt::format("exchanging {} and {}", path_, target));
}

void remove_folder(const std::string& parent, const std::string& path, const std::function<void()>& check) {
  const TemporaryFolder temporary(parent, check);
  rename_path(path, temporary.path() + "/removed");
}

void remove_leftovers(const std::string& parent) {
  for (const std::string& path : temporary_folders(parent)) {
    try {
      const FileDescriptor fd(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      std::error_code ignored;
      if (is_left_over(fd)) fs::remove_all(path, ignored);
    } catch (const Error&) {
      continue;  // another process has removed it first
    }
  }
}

}  // namespace tutti::store
