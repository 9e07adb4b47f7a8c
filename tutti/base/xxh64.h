#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

// Returns the XXH64 of the text's bytes with the seed 0: the same number on every machine and in every
// version.
uint64_t xxh64(std::string_view text);

}  // namespace tutti
