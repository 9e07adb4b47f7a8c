#include "tutti/base/file_lock.h"

#include <cerrno>
#include <sys/file.h>

#include "tutti/base/error.h"

namespace tutti {

LockResult try_to_lock(const FileDescriptor& file, const std::string& path) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return LockResult::Taken;
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
      return LockResult::Unsupported;
    fail_errno(errno, "locking " + path);
  }
  return LockResult::Locked;
}

}  // namespace tutti
