#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::data {

// Mixes the bits of a 64-bit word: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a
// bijection.
constexpr uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

// A bijection on [0, size) that is determined by a key and computed on demand, so that shuffling needs no
// array. Const after construction; building one costs about as much as evaluating it once.
//
// A Feistel network permutes the numbers of b bits, where 2^b is the first power of two that is not less than
// `size`; a result outside [0, size) is encrypted again until it is inside (cycle walking: Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002). At most half of the numbers lie outside, so that two rounds
// of encryption suffice on average.
class Permutation {
 public:
  static constexpr int64_t kLargest = int64_t{1} << 62;

  // Requires 0 <= size <= kLargest, else throws InvalidArgument.
  Permutation(int64_t size, uint64_t key);

  int64_t size() const { return static_cast<int64_t>(size_); }

  // Returns the image of `position`, which must be in [0, size); anything else is a Bug.
  int64_t operator()(int64_t position) const;

 private:
  // A round mixes little if a half has few bits, so narrow networks use more rounds; permutation_test.cc
  // shows that 18 rounds of 3 bits are not enough.
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
