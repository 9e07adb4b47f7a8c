#include "tutti/data/tables/float_text.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tutti::data {
namespace {

// Against the C library, to the bit. Returns whether it was one of the common ones.
bool check(const std::string& text) {
  float number = 0;
  const char* const end = read_common_float(text.data(), text.data() + text.size(), number);
  if (end == nullptr) return false;
  char* expected_end = nullptr;
  const float expected = std::strtof(text.c_str(), &expected_end);
  EXPECT_EQ(end, expected_end) << text;
  EXPECT_EQ(std::bit_cast<uint32_t>(number), std::bit_cast<uint32_t>(expected)) << text;
  return true;
}

TEST(FloatText, of_the_common_kind_gives_the_nearest_float) {
  for (const char* text :
       {"0", "-0", "1", "-1.5", "0.1", ".5", "5.", "3e2", "3E-2", "1e+22", "16777215", "0.000123456\tx"})
    EXPECT_TRUE(check(text)) << text;
  std::mt19937_64 random(3);
  int common = 0;
  constexpr int kTexts = 300000;
  for (int i = 0; i < kTexts; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const int digits = 1 + static_cast<int>(random() % 12);
    common += check(i % 2 == 0 ? fmt::format("{:.{}g}", value, digits)
                               : fmt::format("{:.{}f}", std::fmod(value, 1e4F), digits))
                  ? 1
                  : 0;
  }
  EXPECT_GT(common, kTexts / 2);
}

// Whatever stands behind it, and however many digits there are before and behind the point.
TEST(FloatText, ends_where_its_digits_end) {
  for (const std::string& behind : {std::string(), std::string("\t1234567890"),
                                    std::string("\xff\xff\xff\xff"
                                                "99999999"),
                                    std::string("/0:0;0"), std::string(20, '\0')}) {
    for (int whole = 0; whole <= 15; ++whole) {
      for (int part = whole == 0 ? 1 : 0; part <= 15 - whole; ++part) {
        const std::string text = std::string("987654321098765").substr(0, static_cast<size_t>(whole)) + "." +
                                 std::string("123456789012345").substr(0, static_cast<size_t>(part));
        float number = 0;
        const std::string all = text + behind;
        const char* const end = read_common_float(all.data(), all.data() + all.size(), number);
        if (end == nullptr) continue;  // right between two floats
        EXPECT_EQ(end - all.data(), static_cast<std::ptrdiff_t>(text.size())) << all;
        EXPECT_EQ(number, std::strtof(text.c_str(), nullptr)) << all;
      }
    }
  }
}

// Right between two floats, and a hair beside it.
TEST(FloatText, that_is_hard_to_round_gives_the_nearest_float) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100000; ++i) {
    const double between = static_cast<double>((random() % (1 << 23)) + (1 << 23)) + 0.5;
    check(fmt::format("{:.1f}", between));
    check(fmt::format("{:.1f}00001", between));
    check(fmt::format("{}e-{}", static_cast<uint64_t>(between * 10), 1 + random() % 20));
  }
}

TEST(FloatText, of_another_kind_is_left_to_others) {
  for (const char* text :
       {"", "-", ".", "x", "nan", "inf", "1e", "1e-", "1e100", "1234567890123456", "1e-40", "+1"})
    EXPECT_FALSE(check(text)) << text;
}

}  // namespace
}  // namespace tutti::data
