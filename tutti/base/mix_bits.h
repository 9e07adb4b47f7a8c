#pragma once

#include <cstdint>

namespace tutti {

inline constexpr uint64_t kGoldenBits = 0x9e3779b97f4a7c15ULL;  // 2^64 / the golden section

// Mixes the bits of a 64-bit word: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection. The
// generator SplitMix64 itself is mix_bits(counter += kGoldenBits).
constexpr uint64_t mix_bits(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

}  // namespace tutti
