#include "tutti/data/tables/spool.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/environment.h"
#include "tutti/base/error.h"

namespace tutti::data {

Spool::Spool(const std::string& what) {
  const std::string folder = Environment::of_process().get("TMPDIR").value_or("/var/tmp");
  what_ = fmt::format("{} in {} (set TMPDIR to use another folder)", what, folder);
  std::string path = folder + "/tutti-XXXXXX";  // the template for mkostemp(3)
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) fail_errno(errno, what_);
  fd_ = FileDescriptor(fd);
  unlink(path.c_str());
}

void Spool::read_at(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_errno(count < 0 ? errno : EIO, what_);
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

}  // namespace tutti::data
