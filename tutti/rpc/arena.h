#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tutti::rpc {

// More than any machine has; ThreadSanitizer leaves a process less of it.
#ifdef __SANITIZE_THREAD__
inline constexpr size_t kArenaCapacity = size_t{1} << 36;
#else
inline constexpr size_t kArenaCapacity = size_t{1} << 40;
#endif

// Memory of this process that others of the same user on the same machine can see: bytes that lie in it are
// not sent to them but named. It has no name in any file system, so that nothing is left behind whoever is
// killed. Thread-safe.
class Arena {
 public:
  // So many bytes of address space, or what the process may have, if that is less (`ulimit -v`); memory is
  // taken only for what is used.
  explicit Arena(size_t capacity = kArenaCapacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeros, from a page on, for as long as the arena lives. Where the machine has no more: Overloaded.
  std::span<std::byte> allocate(size_t bytes);
  bool contains(std::span<const std::byte> bytes) const;
  // Where in the arena it begins; it has to be all inside.
  size_t offset_of(std::span<const std::byte> bytes) const;

  // What another process needs to find it.
  std::string name() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc
