#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <span>
#include <string>

#include "tutti/base/secret.h"

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

// The arena of another process, mapped into this one. Thread-safe.
class Mapping {
 public:
  // Maps an arena by Arena::name(). Returns null if it is not accessible: it is on another machine, belongs
  // to another user, or no longer exists.
  static std::shared_ptr<const Mapping> attach(const std::string& name);

  Mapping(std::byte* base, size_t size) : base_(base), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Returns a range that the other process has allocated; throws DataLoss for any other.
  std::span<std::byte> at(uint64_t offset, uint64_t bytes) const;

 private:
  std::byte* const base_;
  const size_t size_;
};

// Layout of an arena in shared memory: the first page is this head, and the allocated memory follows.
inline constexpr size_t kArenaPage = 4096;
inline constexpr const char* kArenaFile = "tutti-arena";
inline constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct ArenaHead {
  char nonce[kNonceSize];      // tells this arena from any other file with the same descriptor
  std::atomic<uint64_t> used;  // allocated bytes, including the page of the head
};
static_assert(sizeof(ArenaHead) <= kArenaPage && std::atomic<uint64_t>::is_always_lock_free);

constexpr size_t round_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace tutti::rpc
