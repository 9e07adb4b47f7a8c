#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

namespace tutti {

// Hashes of the text's bytes with the seed 0: the same numbers on every machine and in every version.
uint64_t xxh64(std::string_view text);  // XXH64

struct XxhBits128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const XxhBits128&) const = default;
};
XxhBits128 xxh128(std::string_view text);  // XXH3 with 128 bits

}  // namespace tutti
