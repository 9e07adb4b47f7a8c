#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::data {

// One well-mixed 64-bit word out of another: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a
// bijection.
constexpr uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

// A bijection on [0, size) chosen by a key, computed where it is asked for: shuffling without an array. Const
// after construction; building one costs about as much as evaluating it once.
//
// A Feistel network permutes the numbers of b bits, where 2^b is the first power of two that holds `size`; a
// result outside [0, size) is encrypted again until it falls inside (cycle walking: Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002). At most half of the numbers lie outside, so two turns are
// enough on average.
class Permutation {
 public:
  static constexpr int64_t kLargest = int64_t{1} << 62;

  // 0 <= size <= kLargest, else InvalidArgument.
  Permutation(int64_t size, uint64_t key);

  int64_t size() const { return static_cast<int64_t>(size_); }

  // Where `position` in [0, size) goes; anything else is a Bug.
  int64_t operator()(int64_t position) const;

 private:
  // A round mixes little where a half has few bits, so narrow networks get more of them; permutation_test.cc
  // sees 18 rounds of 3 bits fall short.
  static constexpr int kNarrowBits = 10;
  static constexpr int kNarrowRounds = 24;
  static constexpr int kWideRounds = 10;

  uint64_t encrypt(uint64_t word) const;

  uint64_t size_;
  int right_bits_;
  uint64_t left_mask_;
  uint64_t right_mask_;
  size_t rounds_;
  std::array<uint64_t, kNarrowRounds> round_keys_;
};

}  // namespace tutti::data
