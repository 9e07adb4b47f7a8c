#include "tutti/store/temporary_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::store {
namespace {

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

bool is_left_over(const FileDescriptor& fd) { return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0; }

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& parent) {
  for (int number = 0;; ++number) {
    const std::string path = fmt::format("{}/{}{}-{}", parent, kTemporaryPrefix, ::getpid(), number);
    if (!make_folder(path)) continue;
    if (auto lock = lock_own(path)) {
      path_ = path;
      lock_ = std::move(*lock);
      return;
    }
  }
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // remove_leftovers() removes the rest later
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void TemporaryFolder::rename_to(const std::string& target) {
  rename_path(path_, target);
  path_.clear();
}

void remove_folder(const std::string& parent, const std::string& path) {
  const TemporaryFolder temporary(parent);
  rename_path(path, temporary.path() + "/removed");
}

void remove_leftovers(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kTemporaryPrefix)) continue;
    try {
      const FileDescriptor fd(entry->path().string(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
      std::error_code ignored;
      if (is_left_over(fd)) fs::remove_all(entry->path(), ignored);
    } catch (const Error&) {
      continue;  // another process has removed it first
    }
  }
}

}  // namespace tutti::store
