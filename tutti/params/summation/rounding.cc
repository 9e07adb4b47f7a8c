#include "tutti/params/summation/rounding.h"

#include <torch/utils.h>

namespace tutti {

torch::Tensor Rounding::round(const torch::Tensor& exact) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor wanted = lost_.defined() ? exact + lost_ : exact;
  // Clamps only for half: bfloat16 has the range of float32.
  constexpr double kLargestHalf = 65504;
  const torch::Tensor in_range = to_ == torch::kHalf ? wanted.clamp(-kLargestHalf, kLargestHalf) : wanted;
  torch::Tensor rounded = in_range.to(to_);
  if (keep_) {
    lost_ = wanted - rounded.to(exact.scalar_type());
    // An infinity or NaN must not stay in the residual for ever.
    lost_.nan_to_num_(0, 0, 0);
  }
  return rounded;
}

}  // namespace tutti
