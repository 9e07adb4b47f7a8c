#include "tutti/params/ftrl.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/params/optimizer_options.h"

namespace tutti {

void make_ftrl_step(const FtrlOptions& options, const ElementwiseUpdate& u) {
  if (u.rate == 0) return;
  const torch::Tensor& accumulator = u.slots[0];
  const torch::Tensor& linear = u.slots[1];
  const auto powered = [&](const torch::Tensor& sum) {
    return options.rate_power == -0.5 ? sum.sqrt() : sum.pow(-options.rate_power);
  };
  const torch::Tensor before = powered(accumulator);
  accumulator.add_(u.grads.square());
  const torch::Tensor now = powered(accumulator);
  linear.add_(u.grads).add_(u.values * (u.weight_decay - (now - before) / u.rate));
  const torch::Tensor quadratic = (now + options.beta) / u.rate + 2 * options.l2;
  const torch::Tensor moved = (linear.sign() * options.l1 - linear) / quadratic;
  // A NaN stays one.
  u.values.copy_(torch::where(linear.abs() <= options.l1, torch::zeros_like(linear),
                              torch::where(quadratic == 0, u.values, moved)));
}

}  // namespace tutti
