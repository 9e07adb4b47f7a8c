#include "tutti/data/permutation.h"

#include <bit>

#include "tutti/base/check.h"

namespace tutti::data {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)) {
  if (size < 0 || size > kLargest) {
    fail(ErrorKind::InvalidArgument, "a permutation of {} numbers was requested; expected 0 to 2^62", size);
  }
  const int bits = size < 2 ? 0 : std::bit_width(size_ - 1);
  rounds_ = bits <= kNarrowBits ? kNarrowRounds : kWideRounds;
  right_bits_ = (bits + 1) / 2;
  left_mask_ = (uint64_t{1} << (bits - right_bits_)) - 1;
  right_mask_ = (uint64_t{1} << right_bits_) - 1;
  for (size_t round = 0; round < rounds_; ++round) {
    key += kGolden;
    round_keys_[round] = mix(key);
  }
}

uint64_t Permutation::encrypt(uint64_t word) const {
  uint64_t left = word >> right_bits_;
  uint64_t right = word & right_mask_;
  for (size_t round = 0; round < rounds_; round += 2) {
    right ^= mix(left + round_keys_[round]) & right_mask_;
    left ^= mix(right + round_keys_[round + 1]) & left_mask_;
  }
  return (left << right_bits_) | right;
}

int64_t Permutation::operator()(int64_t position) const {
  auto word = static_cast<uint64_t>(position);
  TUTTI_CHECK(word < size_, "position {} size {}", position, size_);
  do {
    word = encrypt(word);
  } while (word >= size_);
  return static_cast<int64_t>(word);
}

}  // namespace tutti::data
