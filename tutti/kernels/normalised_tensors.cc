#include "tutti/kernels/normalised_tensors.h"

#include <ATen/ops/empty_like.h>

#include "tutti/kernels/parallel.h"

namespace tutti::kernels {

at::Tensor as_doubles(const at::Tensor& tensor, int64_t count, double otherwise) {
  if (!tensor.defined()) return at::empty({count}, at::kDouble).fill_(otherwise);
  return tensor.to(at::kDouble).contiguous();
}

at::Tensor apply_values(Normalisation normalisation, const at::Tensor& x, const at::Tensor& gradient,
                        const Values& values, int64_t length, bool of_rows) {
  const at::Tensor out = at::empty_like(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const ScaledRows<T> all = scaled_rows<T>(x, gradient, out, values, length, of_rows);
    in_parallel(all.rows, 2 * length, [&](int64_t first, int64_t last) {
      ScaledRows<T> part = all;
      part.x += first * length;
      if (gradient.defined()) part.gradient += first * length;
      part.out += first * length;
      part.first = first;
      part.rows = last - first;
      apply(normalisation, part);
    });
  });
  return out;
}

Statistics statistics_of(const at::Tensor& x, Dimensions dimensions, int64_t count) {
  const at::Tensor shift = first_elements(x, dimensions);
  const at::Tensor sums = sums_over(x, dimensions, Terms::Moments, shift);
  const at::Tensor mean = at::empty({shift.numel()}, shift.options());
  const at::Tensor variance = at::empty({shift.numel()}, shift.options());
  const double* const first = shift.data_ptr<double>();
  const double* const sum = sums.data_ptr<double>();
  double* const means = mean.data_ptr<double>();
  double* const variances = variance.data_ptr<double>();
  const int64_t each = shift.numel();
  for (int64_t i = 0; i < each; ++i) {
    const Moments moments(first[i], sum[i], sum[each + i], count);
    means[i] = moments.mean;
    variances[i] = moments.variance;
  }
  return {mean, variance};
}

}  // namespace tutti::kernels
