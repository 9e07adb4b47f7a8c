#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>

#include "tutti/base/secret.h"

// Layout of an arena in shared memory: the first page is this head, and the allocated memory follows.
namespace tutti::rpc {

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
