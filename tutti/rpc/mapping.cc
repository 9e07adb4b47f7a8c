#include "tutti/rpc/mapping.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/text.h"
#include "tutti/rpc/arena_head.h"

namespace tutti::rpc {
namespace {

// Returns the path of a descriptor of another process, or "" if it is not an arena. Checked before opening,
// because opening another kind of file may have side effects.
std::string path_of(int64_t pid, int64_t descriptor) {
  std::string path = fmt::format("/proc/{}/fd/{}", pid, descriptor);
  std::array<char, 64> target{};
  const auto size = readlink(path.c_str(), target.data(), target.size());
  const std::string_view is(target.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return is.starts_with(fmt::format("/memfd:{}", kArenaFile)) ? path : "";
}

// Returns its size, or 0 if the file does not have the properties of an arena.
size_t size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  if ((fcntl(descriptor, F_GET_SEALS) & kArenaSeals) != kArenaSeals) return 0;
  return status.st_size > static_cast<off_t>(kArenaPage) ? static_cast<size_t>(status.st_size) : 0;
}

}  // namespace

std::shared_ptr<const Mapping> Mapping::of(const std::string& name) {
  const auto parts = split(name, '/');
  if (parts.size() != 3) return nullptr;
  const auto pid = parse_int(parts[0]);
  const auto number = parse_int(parts[1]);
  if (!pid || !number || *pid <= 0 || *number < 0) return nullptr;
  const std::string path = path_of(*pid, *number);
  if (path.empty()) return nullptr;
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const size_t size = file.get() < 0 ? 0 : size_of(file.get());
  if (size == 0) return nullptr;
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) return nullptr;
  const auto mapping = std::make_shared<const Mapping>(static_cast<std::byte*>(base), size);
  const auto* head = static_cast<const ArenaHead*>(base);
  return std::string_view(head->nonce, kNonceSize) == parts[2] ? mapping : nullptr;
}

Mapping::~Mapping() { munmap(base_, size_); }

std::span<std::byte> Mapping::at(uint64_t offset, uint64_t bytes) const {
  // The other process writes this number and could lie, but a wrong number only makes pages of its own file
  // accessible.
  const uint64_t end = std::min<uint64_t>(reinterpret_cast<const ArenaHead*>(base_)->used, size_);
  if (offset < kArenaPage || offset > end || bytes > end - offset)
    fail(ErrorKind::DataLoss, "a piece at offset {} with {} bytes is not in the arena of {} bytes", offset,
         bytes, end);
  return {base_ + offset, static_cast<size_t>(bytes)};
}

}  // namespace tutti::rpc
