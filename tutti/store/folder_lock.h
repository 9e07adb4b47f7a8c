#pragma once

#include <chrono>
#include <string>

#include "tutti/base/file.h"

namespace tutti::store {

// Reserves a folder for one job by flock(2) on the file `lock` in it. The kernel releases the lock when the
// process ends for any reason, so that a stale file does no harm. The file names the present or last holder.
//
// NFS forwards the lock to its server, so that it also works between hosts, unless the file system is mounted
// with `nolock` or `local_lock`. If a file system does not support locks, is_held() is false.
class FolderLock {
 public:
  // Creates the folder if it does not exist. Waits up to `patience` for another holder, which may be about to
  // end; then throws an InvalidArgument that names the holder. `who` describes this process.
  FolderLock(const std::string& folder, const std::string& who, std::chrono::milliseconds patience);

  bool is_held() const { return held_; }

 private:
  FileDescriptor fd_;
  bool held_ = false;
};

// Returns "worker/0 on host a, pid 4711, since 2026-11-22 21:46:39 UTC: mnist --steps 100", without the
// secret.
std::string holder_name(const std::string& task);

}  // namespace tutti::store
