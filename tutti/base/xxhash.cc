#include "tutti/base/xxhash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tutti {

uint64_t xxh64(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

XxhBits128 xxh128(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.high64, hash.low64};
}

}  // namespace tutti
