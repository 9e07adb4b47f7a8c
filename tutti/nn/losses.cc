#include "tutti/nn/losses.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

// Accepts targets that have one dimension of size 1 more or less than the outputs: (n, 1) matches (n).
torch::Tensor targets_for(const torch::Tensor& targets, const torch::Tensor& outputs, const char* loss) {
  if (targets.sizes() == outputs.sizes()) return targets;
  const bool same_rows = targets.dim() > 0 && outputs.dim() > 0 && targets.size(0) == outputs.size(0);
  if (!same_rows || targets.numel() != outputs.numel())
    fail(ErrorKind::InvalidArgument, "{}: targets of shape [{}] do not match outputs of shape [{}]", loss,
         fmt::join(targets.sizes(), ", "), fmt::join(outputs.sizes(), ", "));
  return targets.reshape(outputs.sizes());
}

// A sum and the number of its terms.
struct Sum {
  torch::Tensor sum;
  torch::Tensor count;

  torch::Tensor mean() const { return sum / count.clamp_min(1); }
};

// Missing values are masked before anything is computed from them: zero times NaN is NaN, also in a
// gradient.
template <class Each>
Sum sum_of(const char* loss, const torch::Tensor& targets, const torch::Tensor& outputs, const Each& each) {
  // Uses at least float32: a half-precision loss has only three digits.
  const auto type = at::promote_types(outputs.scalar_type(), at::kFloat);
  const torch::Tensor given = outputs.to(type);
  const torch::Tensor wanted = targets_for(targets, outputs, loss).to(type);
  const torch::Tensor missing = wanted.isnan();
  const torch::Tensor of_each = each(wanted.masked_fill(missing, 0), given.masked_fill(missing, 0));
  return {of_each.masked_fill(missing, 0).sum(), missing.logical_not().sum()};
}

Sum xent(const char* loss, const torch::Tensor& targets, const torch::Tensor& logits) {
  return sum_of(loss, targets, logits, [](const torch::Tensor& t, const torch::Tensor& l) {
    return at::binary_cross_entropy_with_logits(l, t, {}, {}, at::Reduction::None);
  });
}

}  // namespace

torch::Tensor xent_uniform_sum(const torch::Tensor& targets, const torch::Tensor& logits) {
  return xent("xent_uniform_sum", targets, logits).sum;
}

torch::Tensor xent_uniform_mean(const torch::Tensor& targets, const torch::Tensor& logits) {
  return xent("xent_uniform_mean", targets, logits).mean();
}

torch::Tensor mse(const torch::Tensor& targets, const torch::Tensor& predictions) {
  const auto squares = [](const torch::Tensor& t, const torch::Tensor& p) { return (p - t).square(); };
  return sum_of("mse", targets, predictions, squares).mean();
}

torch::Tensor l2_penalty(const torch::Tensor& weights, double factor) {
  return weights.square().sum() * (factor / 2);
}

}  // namespace tutti::nn
