#include "tutti/base/xxh64.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tutti {

uint64_t xxh64(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

}  // namespace tutti
