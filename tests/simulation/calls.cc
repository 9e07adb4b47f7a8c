#include "tests/simulation/calls.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <span>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "tutti/base/check.h"

namespace tutti::simulation {
namespace {

Calls* there = nullptr;

int fails_with(int error) {
  errno = error;
  return -1;
}

// The simulated process that makes a call; null for all others.
Process* caller() { return there == nullptr ? nullptr : Process::current(); }

// Makes a change of these files. `make` is the system call, and `tell` tells the disk. Returns what the call
// returns.
template <class Make, class Tell>
auto change(Process& process, const FileCall& call, const Make& make, const Tell& tell) -> decltype(make()) {
  if (const int error = there->before(process, call); error != 0) return fails_with(error);
  const auto result = make();
  if (result < 0) return result;
  tell(result);
  there->after(process, call);
  return result;
}

// A path as the disk knows it: one that is relative to an open folder is completed.
std::string full_path(int folder, const char* path) {
  if (folder == AT_FDCWD || path[0] == '/') return path;
  const std::string parent = there->disk().path_of(folder);
  return parent.empty() ? "" : parent + "/" + path;
}

bool is_simulated(const std::string& path) { return caller() != nullptr && there->disk().has(path); }
bool is_simulated(int descriptor) {
  return caller() != nullptr && !there->disk().path_of(descriptor).empty();
}

// Calls change() for an open file, unless that is not on the simulated disk.
template <class Make, class Tell>
auto change_open(int descriptor, const char* name, const Make& make, const Tell& tell) -> decltype(make()) {
  if (!is_simulated(descriptor)) return make();
  return change(*caller(), {.name = name, .path = there->disk().path_of(descriptor)}, make, tell);
}

int really_open(int folder, const char* path, int flags, mode_t mode) {
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  const auto open = [&] { return really_open(folder, path, flags, mode); };
  if (caller() == nullptr) return open();
  const std::string full = full_path(folder, path);
  if (!there->disk().has(full)) {
    const int descriptor = open();
    if (descriptor >= 0) there->disk().closed(descriptor);  // by a call inside of the C library
    return descriptor;
  }
  const auto tell = [&](int descriptor) { there->disk().opened(full, flags, descriptor); };
  if ((flags & (O_CREAT | O_TRUNC)) != 0)
    return change(*caller(), {.name = "open", .path = full}, open, tell);
  if (caller()->is_killed()) return fails_with(EIO);
  const int descriptor = open();
  if (descriptor >= 0) tell(descriptor);
  return descriptor;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

int remove_name(int folder, const char* path, int flags) {
  const auto remove = [&] { return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags)); };
  const std::string full = caller() == nullptr ? "" : full_path(folder, path);
  if (!is_simulated(full)) return remove();
  return change(*caller(), {.name = "unlink", .path = full}, remove, [&](int /*result*/) {
    const std::string now = full_path(folder, path);  // the folder may have been renamed meanwhile
    if (!now.empty()) there->disk().removed(now);
  });
}

int rename_with(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const auto rename = [&] {
    return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  };
  if (!is_simulated(from)) return rename();
  return change(*caller(), {.name = "rename", .path = from, .to = to}, rename, [&](int /*result*/) {
    if (flags == RENAME_EXCHANGE)
      there->disk().exchanged(from, to);
    else
      there->disk().renamed(from, to);
  });
}

int sync_to_device(int descriptor) {
  const auto sync = [&] { return static_cast<int>(::syscall(SYS_fsync, descriptor)); };
  struct stat status {};
  const bool is_folder = ::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  return change_open(descriptor, "fsync", sync, [&](int /*result*/) {
    const bool skips = is_folder ? there->skips_folders : there->skips_files;
    if (!skips) there->disk().synced(descriptor);
  });
}

timespec time_of(const World& world) {
  constexpr Time kNanoseconds = 1000;
  return {.tv_sec = world.now() / kSecond, .tv_nsec = world.now() % kSecond * kNanoseconds};
}

}  // namespace

Calls::Calls(Disk& disk, std::function<int(Process&, const FileCall&)> before,
             std::function<void(Process&, const FileCall&)> after)
    : disk_(disk), before_(std::move(before)), after_(std::move(after)) {
  TUTTI_CHECK(there == nullptr, "two simulated disks at once");
  there = this;
}

Calls::~Calls() { there = nullptr; }

int Calls::before(Process& process, const FileCall& call) {
  if (process.is_killed()) return EIO;
  const int error = before_(process, call);
  return process.is_killed() ? EIO : error;
}

}  // namespace tutti::simulation

using namespace tutti::simulation;  // NOLINT(google-build-using-namespace)

// These functions replace those that the C library has under the same names.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(folder, path, flags, mode);
}

int close(int descriptor) {
  if (is_simulated(descriptor)) there->disk().closed(descriptor);
  return static_cast<int>(::syscall(SYS_close, descriptor));
}

ssize_t write(int descriptor, const void* data, size_t size) {
  const std::span bytes(static_cast<const std::byte*>(data), size);
  const auto write = [&] { return static_cast<ssize_t>(::syscall(SYS_write, descriptor, data, size)); };
  return change_open(descriptor, "write", write, [&](ssize_t done) {
    there->disk().wrote(descriptor, bytes.first(static_cast<size_t>(done)));
  });
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  const std::span bytes(static_cast<const std::byte*>(data), size);
  const auto write = [&] {
    return static_cast<ssize_t>(::syscall(SYS_pwrite64, descriptor, data, size, offset));
  };
  return change_open(descriptor, "pwrite", write, [&](ssize_t done) {
    there->disk().wrote_at(descriptor, static_cast<uint64_t>(offset), bytes.first(static_cast<size_t>(done)));
  });
}

int ftruncate(int descriptor, off_t size) __THROW {
  const auto truncate = [&] { return static_cast<int>(::syscall(SYS_ftruncate, descriptor, size)); };
  return change_open(descriptor, "ftruncate", truncate, [&](int /*result*/) {
    there->disk().truncated(descriptor, static_cast<uint64_t>(size));
  });
}

int fsync(int descriptor) { return sync_to_device(descriptor); }

int mkdir(const char* path, mode_t mode) __THROW {
  const auto make = [&] { return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode)); };
  if (!is_simulated(path)) return make();
  return change(*caller(), {.name = "mkdir", .path = path}, make,
                [&](int /*result*/) { there->disk().made_folder(path); });
}

int symlink(const char* target, const char* path) __THROW {
  const auto make = [&] { return static_cast<int>(::syscall(SYS_symlinkat, target, AT_FDCWD, path)); };
  if (!is_simulated(path)) return make();
  return change(*caller(), {.name = "symlink", .path = path}, make,
                [&](int /*result*/) { there->disk().made_link(path, target); });
}

int rename(const char* from, const char* to) __THROW { return rename_with(AT_FDCWD, from, AT_FDCWD, to, 0); }

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) __THROW {
  return rename_with(from_folder, from, to_folder, to, flags);
}

int unlink(const char* path) __THROW { return remove_name(AT_FDCWD, path, 0); }
int rmdir(const char* path) __THROW { return remove_name(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char* path, int flags) __THROW { return remove_name(folder, path, flags); }

int remove(const char* path) __THROW {
  struct stat status {};
  const bool is_folder = ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return remove_name(AT_FDCWD, path, is_folder ? AT_REMOVEDIR : 0);
}

// One thread runs all processes, so that none may wait in the kernel for another.
int flock(int descriptor, int operation) __THROW {
  const auto lock = [&](int how) { return static_cast<int>(::syscall(SYS_flock, descriptor, how)); };
  if (!is_simulated(descriptor) || (operation & (LOCK_NB | LOCK_UN)) != 0) return lock(operation);
  while (lock(operation | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return -1;
    if (!caller()->sleep_in_call(kMillisecond)) return fails_with(EIO);
  }
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) __THROW {
  const Process* const process = caller();
  if (process == nullptr) return static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  *time = time_of(process->world());
  return 0;
}

int nanosleep(const timespec* time, timespec* rest) {
  Process* const process = caller();
  if (process == nullptr) return static_cast<int>(::syscall(SYS_nanosleep, time, rest));
  constexpr int64_t kNanoseconds = 1000;
  process->sleep(time->tv_sec * kSecond + time->tv_nsec / kNanoseconds);
  return 0;
}
}
