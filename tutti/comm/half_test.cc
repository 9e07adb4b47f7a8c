#include "tutti/base/half.h"

#include <bit>
#include <cmath>
#include <random>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

namespace tutti {
namespace {

template <class Ours, class Theirs>
void expect_same_number(uint16_t bits) {
  const float ours = static_cast<float>(std::bit_cast<Ours>(bits));
  const float theirs = static_cast<float>(Theirs(bits, Theirs::from_bits()));
  if (std::isnan(theirs)) {
    EXPECT_TRUE(std::isnan(ours)) << bits;
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(ours), std::bit_cast<uint32_t>(theirs)) << bits;
  }
}

template <class Ours, class Theirs>
void expect_same_rounding(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const auto ours = std::bit_cast<uint16_t>(Ours(value));
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Ours(value)))) << bits;
  } else {
    EXPECT_EQ(ours, Theirs(value).x) << bits;
  }
}

TEST(Half, has_the_conversions_of_libtorch) {
  for (uint32_t bits = 0; bits < 1U << 16; ++bits) {
    expect_same_number<Float16, c10::Half>(static_cast<uint16_t>(bits));
    expect_same_number<BFloat16, c10::BFloat16>(static_cast<uint16_t>(bits));
    // Around each number of half precision and each middle between two of them.
    const float value = static_cast<float>(std::bit_cast<Float16>(static_cast<uint16_t>(bits)));
    const auto place = std::bit_cast<uint32_t>(value);
    for (const uint32_t there : {place - 1, place, place + 1, place + 0xfff, place + 0x1000, place + 0x1001})
      expect_same_rounding<Float16, c10::Half>(there);
    for (const uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      expect_same_rounding<BFloat16, c10::BFloat16>(bits << 16 | low);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1 << 20; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    expect_same_rounding<Float16, c10::Half>(bits);
    expect_same_rounding<BFloat16, c10::BFloat16>(bits);
  }
}

}  // namespace
}  // namespace tutti
