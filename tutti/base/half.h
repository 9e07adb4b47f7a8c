#pragma once

#include <bit>
#include <cstdint>

namespace tutti {

// Half precision without LibTorch, with the same conversions: rounded to nearest, ties to even. They have no
// branches, so that loops over them are vectorised, and need no subnormal float, which a thread may flush.

struct Float16 {
  Float16() = default;
  explicit Float16(float value) {
    constexpr uint32_t kInfinity = 0x7f800000;
    constexpr uint32_t kTooLarge = 0x47800000;        // 2^16
    constexpr uint32_t kSmallestNormal = 0x38800000;  // 2^-14
    constexpr uint32_t kHalf = 0x3f000000;            // 0.5, whose last bit is a subnormal's: 2^-24
    constexpr uint32_t kRebias = uint32_t{112} << 23;
    const auto all = std::bit_cast<uint32_t>(value);
    const uint32_t size = all & 0x7fffffff;
    const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5F) - kHalf;
    const uint32_t normal = (size - kRebias + 0xfff + ((size >> 13) & 1)) >> 13;
    const uint32_t special = size > kInfinity ? 0x7e00 : 0x7c00;
    const uint32_t rounded = size >= kTooLarge ? special : size < kSmallestNormal ? subnormal : normal;
    bits = static_cast<uint16_t>(rounded | (all >> 16 & 0x8000));
  }
  explicit operator float() const {
    constexpr uint32_t kRebias = uint32_t{112} << 23;
    constexpr uint32_t kInfinity = uint32_t{31} << 23;
    const uint32_t all = bits;
    const uint32_t size = (all & 0x7fff) << 13;
    const uint32_t normal = size + kRebias + (size >= kInfinity ? kRebias : 0);
    const float subnormal = std::bit_cast<float>(0x3f000000 | (all & 0x3ff)) - 0.5F;
    const uint32_t value = (all & 0x7c00) == 0 ? std::bit_cast<uint32_t>(subnormal) : normal;
    return std::bit_cast<float>(value | (all & 0x8000) << 16);
  }

  uint16_t bits;
};

struct BFloat16 {
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto all = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (all + 0x7fff + ((all >> 16) & 1)) >> 16;
    bits = static_cast<uint16_t>((all & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  uint16_t bits;
};

}  // namespace tutti
