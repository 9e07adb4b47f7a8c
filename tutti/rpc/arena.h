#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tutti::rpc {

// Larger than the memory of any machine. ThreadSanitizer leaves a process less address space.
#ifdef __SANITIZE_THREAD__
inline constexpr size_t kArenaCapacity = size_t{1} << 36;
#else
inline constexpr size_t kArenaCapacity = size_t{1} << 40;
#endif

// Memory of this process that other processes of the same user on the same machine can map: messages refer to
// bytes in it instead of copying them. It has no name in any file system, so that nothing remains when a
// process is killed. Thread-safe.
class Arena {
 public:
  // Reserves `capacity` bytes of address space, or as much as the process may have (`ulimit -v`). Physical
  // memory is allocated only for what is used.
  explicit Arena(size_t capacity = kArenaCapacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns page-aligned zeros that live as long as the arena. Throws Overloaded if there is no more memory.
  std::span<std::byte> allocate(size_t bytes);
  bool contains(std::span<const std::byte> bytes) const;
  // Returns the offset of the bytes in the arena, which has to contain all of them.
  size_t offset_of(std::span<const std::byte> bytes) const;

  // Returns the name by which another process can map the arena (Mapping::of).
  std::string name() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc
