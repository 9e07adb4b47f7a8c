// Operators that LibTorch composes of others in an order that C++ does not fix, since they are operands of
// one expression. Compilers for ARM choose another one than those for x86-64. Autograd adds up the parts of a
// gradient in the reverse order of the operators, so its bits differ. The functions here name every operand,
// and have the order that LibTorch's builds for x86-64 have.
//
// | operators               | types | layouts |
// |-------------------------|-------|---------|
// | kl_div poisson_nll_loss | all   | all     |
#include <ATen/core/Reduction.h>
#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/kl_div_native.h>
#include <ATen/ops/log.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/xlogy.h>

#include "tutti/kernels/operators.h"

namespace tutti::kernels {
namespace {

at::Tensor reduced(const at::Tensor& losses, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return losses.mean();
  if (reduction == at::Reduction::Sum) return losses.sum();
  return losses;
}

at::Tensor kl_div(const at::Tensor& input, const at::Tensor& target, int64_t reduction, bool log_target) {
  if (!input.is_floating_point() || !target.is_floating_point())
    return at::native::kl_div(input, target, reduction, log_target);  // refuses them
  if (log_target) {
    const at::Tensor difference = at::sub(target, input);
    const at::Tensor weight = at::exp(target);
    return reduced(at::mul(weight, difference), reduction);
  }
  const at::Tensor cross = at::mul(target, input);
  const at::Tensor entropy = at::xlogy(target, target);
  return reduced(at::sub(entropy, cross), reduction);
}

at::Tensor poisson_nll_loss(const at::Tensor& input, const at::Tensor& target, bool log_input, bool full,
                            double eps, int64_t reduction) {
  at::Tensor losses;
  if (log_input) {
    const at::Tensor product = at::mul(target, input);
    const at::Tensor rate = at::exp(input);
    losses = at::sub(rate, product);
  } else {
    losses = at::sub(input, at::mul(target, at::log(at::add(input, eps))));
  }
  if (full) {  // Stirling's approximation of the target's factorial
    constexpr double kPi = 3.141592653589793;
    const at::Tensor root = at::mul(at::log(at::mul(target, 2 * kPi)), 0.5);
    const at::Tensor power = at::sub(at::mul(target, at::log(target)), target);
    losses.add_(at::add(power, root).masked_fill(target <= 1, 0));
  }
  return reduced(losses, reduction);
}

}  // namespace

void register_composed(Registrar& library) {
  library.impl_with_gradients("kl_div", kl_div);
  library.impl_with_gradients("poisson_nll_loss", poisson_nll_loss);
}

}  // namespace tutti::kernels
