#pragma once

#include <string>

#include "tutti/base/file.h"

namespace tutti {

enum class LockResult {
  Locked,       // until the descriptor is closed, or the process ends
  Taken,        // another process has it
  Unsupported,  // the file system has no locks
};

// Tries to lock a file for this process alone, by flock(2). `path` is for messages.
LockResult try_to_lock(const FileDescriptor& file, const std::string& path);

}  // namespace tutti
