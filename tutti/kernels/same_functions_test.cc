#include "tutti/kernels/same_functions.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::same_functions_test {
namespace {

using Real = long double;

struct Case {
  std::string name;
  double (*function)(double);
  Real (*reference)(Real);
  double largest_error;  // in units of the last place
  double least;          // of the operand
  double most;
};

const std::vector<Case> kCases = {
    {"exp", same::exp, [](Real x) { return std::exp(x); }, 1, -700, 700},
    {"exp of a small number", same::exp, [](Real x) { return std::exp(x); }, 1, -1, 1},
    {"exp2", same::exp2, [](Real x) { return std::exp2(x); }, 1.2, -1000, 1000},
    {"log", same::log, [](Real x) { return std::log(x); }, 1, 0, 3},
    {"log of a large number", same::log, [](Real x) { return std::log(x); }, 1, 0, 1e300},
    {"log1p", same::log1p, [](Real x) { return std::log1p(x); }, 1, -1, 2},
    {"log2", same::log2, [](Real x) { return std::log2(x); }, 1, 0, 1000},
    {"sin", same::sin, [](Real x) { return std::sin(x); }, 1, -10, 10},
    {"cos", same::cos, [](Real x) { return std::cos(x); }, 1, -10, 10},
    {"0.9^n", [](double n) { return same::pow(0.9, std::floor(n)); },
     [](Real n) { return std::pow(Real(0.9), std::floor(n)); }, 1.2, 1, 6000},
    {"0.999^n", [](double n) { return same::pow(0.999, std::floor(n)); },
     [](Real n) { return std::pow(Real(0.999), std::floor(n)); }, 1.2, 1, 700'000},
};

// Numbers that are spread evenly, by an integer sequence.
std::vector<double> numbers(double least, double most) {
  std::vector<double> all;
  uint64_t state = 33;
  for (int i = 0; i < 4000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    all.push_back(least + (most - least) * (static_cast<double>(state >> 11U) + 0.5) * 0x1p-53);
  }
  return all;
}

TEST(SameFunctions, have_the_error_that_they_promise_and_the_same_bits_on_every_target) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    std::vector<double> first;
    on_every_target([&] {
      std::vector<double> found;
      double largest = 0;
      for (const double x : numbers(each.least, each.most)) {
        found.push_back(each.function(x));
        const Real expected = each.reference(x);
        const double size = std::fabs(static_cast<double>(expected));
        const double unit = std::nextafter(size, HUGE_VAL) - size;
        largest = std::max(largest, static_cast<double>(std::fabs(found.back() - expected)) / unit);
      }
      EXPECT_LE(largest, each.largest_error);
      if (first.empty()) first = found;
      EXPECT_EQ(found, first);
    });
  }
}

TEST(SameFunctions, are_exact_where_the_result_is_a_number_that_programs_rely_on) {
  on_every_target([] {
    for (int n = 0; n <= 60; ++n) {
      EXPECT_EQ(same::exp2(n), std::ldexp(1, n));
      EXPECT_EQ(same::log2(std::ldexp(1, n)), n);
      EXPECT_EQ(same::pow(0.5, n), std::ldexp(1, -n));
    }
    for (int n = 0; n <= 15; ++n) EXPECT_EQ(same::pow(10, n), std::stod("1e" + std::to_string(n)));
    EXPECT_EQ(same::pow(0, 0), 1);
    EXPECT_EQ(same::pow(0, 3), 0);
    EXPECT_EQ(same::exp(0), 1);
    EXPECT_EQ(same::log(1), 0);
    EXPECT_EQ(same::cos(0), 1);
    EXPECT_EQ(same::sin(0), 0);
    EXPECT_EQ(same::log(0), -HUGE_VAL);
    EXPECT_TRUE(std::isnan(same::log(-1)));
  });
}

}  // namespace
}  // namespace tutti::kernels::same_functions_test
