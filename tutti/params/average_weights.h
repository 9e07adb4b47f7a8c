#pragma once

#include <cmath>
#include <cstdint>

namespace tutti {

// The weights of an exponential moving average that is corrected for its beginning, as Adam corrects its
// averages: after n values it is the mean of the values 1 to n, in which value k has the weight decay^(n-k).
// Values before the first one have no weight.
struct AverageWeights {
  double decay = 0;

  // Returns the weight of the newest one of n values, n > 0:
  //   average of n = average of n-1 + newest(n) * (value n - average of n-1)
  double newest(int64_t n) const { return (1 - decay) / (1 - power(n)); }
  // Returns the weight of the first m of n values together, 0 <= m <= n and n > 0.
  double first(int64_t m, int64_t n) const { return power(n - m) * (1 - power(m)) / (1 - power(n)); }

 private:
  double power(int64_t exponent) const { return std::pow(decay, static_cast<double>(exponent)); }
};

}  // namespace tutti
