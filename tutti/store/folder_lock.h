#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "tutti/base/file.h"

namespace tutti::store {

// Reserves a folder for one job by flock(2) on the file `lock` in it. The kernel releases the lock when the
// process ends for any reason, so that a stale file does no harm. The file names the present or last holder.
//
// NFS forwards the lock to its server, so that it also works between hosts, unless the file system is mounted
// with `nolock` or `local_lock`. If a file system does not support locks, is_held() is false. It is false as
// well after another process has taken the lock away.
class FolderLock {
 public:
  // Creates the folder if it does not exist. Waits up to `patience` for another holder, which may be about to
  // end; then throws an InvalidArgument that names the holder. `who` describes this process.
  FolderLock(const std::string& folder, const std::string& who, std::chrono::milliseconds patience);

  bool is_held() const { return held_ && !is_taken_away() && !is_removed(); }
  bool is_taken_away() const;
  // The folder was removed, or is another one now.
  bool is_removed() const;

 private:
  std::string folder_;
  FileDescriptor folder_fd_;
  FileDescriptor fd_;
  bool held_ = false;
};

// Takes the lock away from a process that is to write there no more, but is still there: one that was stopped
// and that the others of its job have left behind. The temporary folders in `folder` go with it, so that
// nothing that it has begun appears there later.
void take_away_lock(const std::string& folder);

// Returns the holder of a folder's lock, as named in its file. Returns nullopt if no process holds the lock,
// or if this cannot be determined because the file system has no locks or its locks do not reach the holder's
// host.
std::optional<std::string> lock_holder(const std::string& folder);

// Returns "worker/0 on host a, pid 4711, since 2026-11-22 21:46:39 UTC: mnist --steps 100", without the
// secret.
std::string holder_name(const std::string& task);

// A folder with a unique name in `parent`. It is filled and then renamed to its target; otherwise it is
// removed. It is locked while its process lives, so that others can tell leftovers of dead processes from
// work in progress.
class TemporaryFolder {
 public:
  // Calls `check` when the folder is there; it throws if this process may not write to `parent` any more. If
  // the lock of `parent` is taken away before that, the check fails; if later, the folder is gone.
  explicit TemporaryFolder(const std::string& parent, const std::function<void()>& check = {});
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  void rename_to(const std::string& target);
  // Makes this folder `target` and what was there the temporary folder, which is removed, in one step.
  // Returns false if the file system cannot do that.
  bool exchange_with(const std::string& target);

 private:
  void remove();

  std::string path_;
  FileDescriptor lock_;
};

// Removes a folder atomically: no process sees an incomplete folder under this name. Files that cannot be
// removed at once are removed later by remove_leftovers(). `check` as for a TemporaryFolder.
void remove_folder(const std::string& parent, const std::string& path,
                   const std::function<void()>& check = {});

// Removes the temporary folders in `parent` whose processes have ended.
void remove_leftovers(const std::string& parent);

}  // namespace tutti::store
