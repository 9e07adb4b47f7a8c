#pragma once

#include <cstdint>

#include "tutti/data/permutation.h"

namespace tutti::data {

// A stream of pseudo-random numbers that starts from a key: SplitMix64. The same key gives the same numbers
// on every machine, since it does not use libm.
class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : state_(key) {}

  uint64_t word() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix(state_);
  }

  // Returns a number in [0, 1), a multiple of 2^-24.
  float uniform() { return static_cast<float>(word() >> 40) * 0x1p-24F; }
  float uniform(float low, float high) { return low + (high - low) * uniform(); }

  // Returns a number in [0, count) for a small count.
  int below(int count) { return static_cast<int>((word() >> 32) * static_cast<uint64_t>(count) >> 32); }

  // Returns a nearly normal number, mean 0, deviation 1, within 3.5: the sum of four uniform ones from a
  // word.
  float bell() {
    const uint64_t bits = word();
    const auto sum =
        static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (sum - 131070.0F) * (1.7320508F / 65536.0F);
  }

 private:
  uint64_t state_;
};

}  // namespace tutti::data
