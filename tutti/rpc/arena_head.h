#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>

#include "tutti/rpc/proof.h"

// What an arena looks like to those who map it: its first page is this head, what has been allocated follows.
namespace tutti::rpc {

inline constexpr size_t kArenaPage = 4096;
inline constexpr const char* kArenaFile = "tutti-arena";
inline constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct ArenaHead {
  char nonce[kNonceDigits];    // says that it is this one, and no other file of that number
  std::atomic<uint64_t> used;  // bytes from the beginning of the head on that have been allocated
};
static_assert(sizeof(ArenaHead) <= kArenaPage && std::atomic<uint64_t>::is_always_lock_free);

constexpr size_t round_to(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace tutti::rpc
