#include "tutti/data/tables/float_text.h"

#include <bit>
#include <cstdint>
#include <limits>

namespace tutti::data {
namespace {

// Those that a double holds exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMostPower = 22;
constexpr int kMostDigits = 15;

unsigned digit(const char* at) { return static_cast<unsigned>(*at) - '0'; }

}  // namespace

// Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): digits and power of ten are
// exact as doubles, so that their quotient or product is the nearest double. The float that is nearest to
// that is nearest to the number, too, unless the double lies right between two floats.
const char* read_common_float(const char* at, const char* end, float& number) {
  const bool negative = at != end && *at == '-';
  if (negative) ++at;
  uint64_t digits = 0;
  const char* const first = at;
  for (; at != end && digit(at) < 10; ++at) digits = 10 * digits + digit(at);
  auto count = at - first;
  int power = 0;
  if (at != end && *at == '.') {
    const char* const point = ++at;
    for (; at != end && digit(at) < 10; ++at) digits = 10 * digits + digit(at);
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
