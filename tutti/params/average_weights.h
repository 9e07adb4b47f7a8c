#pragma once

#include <cstdint>

#include "tutti/kernels/same_functions.h"

namespace tutti {

// The weights of an exponential moving average that is corrected for its beginning, as Adam corrects its
// averages: after n values it is the mean of the values 1 to n, in which value k has the weight decay^(n-k).
// Values before the first one have no weight.
struct AverageWeights {
  double decay = 0;

  // Returns the weight of the newest one of n values, n > 0:
  //   average of n = average of n-1 + newest(n) * (value n - average of n-1)
  double newest(int64_t n) const { return (1 - decay) / (1 - same::pow(decay, static_cast<double>(n))); }
  // Returns the weight of the first m of n values together, 0 <= m <= n and n > 0.
  double first(int64_t m, int64_t n) const {
    const double bases[] = {decay, decay, decay};
    const double exponents[] = {static_cast<double>(n - m), static_cast<double>(m), static_cast<double>(n)};
    double powers[3];
    kernels::apply<double>(kernels::Function::Pow,
                           {.in = {bases, exponents, nullptr}, .out = powers, .count = 3}, nullptr);
    return powers[0] * (1 - powers[1]) / (1 - powers[2]);
  }
};

}  // namespace tutti
