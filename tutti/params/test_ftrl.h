#pragma once

#include <cmath>

#include "tutti/params/ftrl.h"

namespace tutti {

// One weight under FTRL, by TensorFlow's definition (ApplyFtrlV2, with beta as Keras adds it), in double
// precision.
struct FtrlWeight {
  double w = 0;
  double n = 0;
  double z = 0;

  FtrlWeight(const FtrlOptions& options, double initial) : w(initial), n(options.initial_accumulator_value) {}

  void step(const FtrlOptions& options, double rate, double g) {
    const double new_n = n + g * g;
    const double sigma = (std::pow(new_n, -options.rate_power) - std::pow(n, -options.rate_power)) / rate;
    z += g + 2 * options.l2_shrinkage * w - sigma * w;
    n = new_n;
    const double l2 = options.l2 + options.beta / (2 * rate);
    const double quadratic = std::pow(n, -options.rate_power) / rate + 2 * l2;
    const double sign = z > 0 ? 1 : -1;
    if (std::abs(z) <= options.l1)
      w = 0;
    else if (quadratic != 0)
      w = (sign * options.l1 - z) / quadratic;
  }
};

}  // namespace tutti
