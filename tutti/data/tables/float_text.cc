#include "tutti/data/tables/float_text.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tutti::data {
namespace {

// Those that a double holds exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMostPower = 22;
constexpr int kMostDigits = 15;

constexpr uint64_t kTens[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

unsigned digit(const char* at) { return static_cast<unsigned>(*at) - '0'; }

// The number that eight bytes are, each a digit, the first in the lowest: pairs, then fours, then all.
uint64_t eight_digits(uint64_t bytes) {
  bytes = bytes * 10 + (bytes >> 8);
  const uint64_t low = (bytes & 0x000000FF000000FF) * 0x000F424000000064;
  const uint64_t high = (bytes >> 16 & 0x000000FF000000FF) * 0x0000271000000001;
  return (low + high) >> 32;
}

// Takes all digits from `at` on, eight at a time where there are so many bytes, and appends them to `digits`.
const char* take_digits(const char* at, const char* end, uint64_t& digits) {
  static_assert(std::endian::native == std::endian::little);
  while (end - at >= 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, at, sizeof bytes);
    bytes ^= 0x3030303030303030;
    // The lowest byte with this bit is the first that is no digit; those above it may lie.
    const uint64_t others = ((bytes + 0x7676767676767676) | bytes) & 0x8080808080808080;
    const int count = others == 0 ? 8 : std::countr_zero(others) / 8;
    if (count == 0) return at;
    digits = digits * kTens[count] + eight_digits(bytes << (64 - 8 * count));
    at += count;
    if (count < 8) return at;
  }
  for (; at != end && digit(at) < 10; ++at) digits = 10 * digits + digit(at);
  return at;
}

}  // namespace

// Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): digits and power of ten are
// exact as doubles, so that their quotient or product is the nearest double. The float that is nearest to
// that is nearest to the number, too, unless the double lies right between two floats.
const char* read_common_float(const char* at, const char* end, float& number) {
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  uint64_t digits = 0;
  const char* const first = at;
  at = take_digits(at, end, digits);
  auto count = at - first;
  int power = 0;
  if (at != end && *at == '.') {
    const char* const point = ++at;
    at = take_digits(at, end, digits);
    power = -static_cast<int>(at - point);
    count += at - point;
  }
  if (count == 0 || count > kMostDigits) return nullptr;
  if (at != end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool down = at != end && *at == '-';
    if (at != end && (*at == '-' || *at == '+')) ++at;
    int exponent = 0;
    const char* const begin = at;
    for (; at != end && digit(at) < 10 && at - begin < 3; ++at)
      exponent = 10 * exponent + static_cast<int>(digit(at));
    if (at == begin || at - begin > 2) return nullptr;
    power += down ? -exponent : exponent;
  }
  if (power < -kMostPower || power > kMostPower) return nullptr;
  const auto whole = static_cast<double>(digits);
  const double value = power < 0 ? whole / kPowers[-power] : whole * kPowers[power];
  constexpr uint64_t kBelowFloat = (uint64_t{1} << 29) - 1;  // bits that a float does not have
  const bool is_between = (std::bit_cast<uint64_t>(value) & kBelowFloat) == uint64_t{1} << 28;
  if (is_between || (value != 0 && value < std::numeric_limits<float>::min())) return nullptr;
  number = static_cast<float>(negative ? -value : value);
  return at;
}

}  // namespace tutti::data
