#pragma once

#include <cmath>
#include <limits>

namespace tutti::metrics {

// The codes that represent numbers that are not finite, since counters have only finite numbers.
constexpr double kFinite = 0;
constexpr double kPlusInfinity = 1;
constexpr double kMinusInfinity = 2;
constexpr double kNotANumber = 3;

inline double code_of(double number) {
  if (std::isnan(number)) return kNotANumber;
  if (std::isinf(number)) return number > 0 ? kPlusInfinity : kMinusInfinity;
  return kFinite;
}

// Returns 0 for kFinite.
inline double number_of_code(double code) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (code == kNotANumber) return std::numeric_limits<double>::quiet_NaN();
  if (code == kFinite) return 0;
  return code == kPlusInfinity ? kInfinity : -kInfinity;
}

}  // namespace tutti::metrics
