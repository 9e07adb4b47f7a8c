// group_norm and its gradients.
#include <array>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_group_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_group_norm_cpu_dispatch.h>

#include "tutti/kernels/normalised_tensors.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

bool is_our_group(std::string_view name, const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias, int64_t batch, int64_t channels, int64_t pixels, int64_t groups) {
  const auto fits = [&](const at::Tensor& each) { return !each.defined() || each.numel() == channels; };
  if (x.numel() == 0 || x.numel() != batch * channels * pixels || groups <= 0 || channels % groups != 0 ||
      !fits(weight) || !fits(bias))
    return false;
  return are_reduced(name, x, weight, bias);
}

Three group_norm(const at::Tensor& input, const Optional& of_weight, const Optional& of_bias, int64_t batch,
                 int64_t channels, int64_t pixels, int64_t groups, double eps) {
  const at::Tensor weight = given(of_weight);
  const at::Tensor bias = given(of_bias);
  if (!is_our_group("aten::native_group_norm", input, weight, bias, batch, channels, pixels, groups))
    return at::cpu::native_group_norm(input, of_weight, of_bias, batch, channels, pixels, groups, eps);
  const at::Tensor x = widened(input).contiguous();
  const int64_t each = channels / groups;  // channels of a group
  const Statistics statistics =
      statistics_of(x.view({batch * groups, each * pixels}), Dimensions(2), each * pixels);
  const at::Tensor factors = as_doubles(weight, channels, 1);
  const at::Tensor offsets = as_doubles(bias, channels, 0);
  const at::Tensor scale = at::empty({batch * groups}, at::kDouble);
  const double* const means = statistics.mean.data_ptr<double>();
  const double* const variances = statistics.variance.data_ptr<double>();
  const double* const factor = factors.data_ptr<double>();
  const double* const offset = offsets.data_ptr<double>();
  double* const scales = scale.data_ptr<double>();
  Values values(x, 3, batch * channels);
  for (int64_t g = 0; g < batch * groups; ++g) scales[g] = scale_of(variances[g], eps);
  for (int64_t i = 0; i < batch * channels; ++i) {
    const int64_t c = i % channels;
    values.set(0, i, means[i / each]);
    values.set(1, i, scales[i / each] * factor[c]);
    values.set(2, i, offset[c]);
  }
  const at::Tensor out = apply_values(Normalisation::Forward, x, {}, values, pixels, /*of_rows=*/true);
  const at::ScalarType type = statistics_type(input, weight);
  return {out.to(input.scalar_type()).contiguous(input.suggest_memory_format()),
          statistics.mean.to(type).view({batch, groups}), scale.to(type).view({batch, groups})};
}

Three group_norm_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& of_mean,
                          const at::Tensor& of_scale, const Optional& of_weight, int64_t batch,
                          int64_t channels, int64_t pixels, int64_t groups, std::array<bool, 3> wanted) {
  const at::Tensor weight = given(of_weight);
  if (gradient.sizes() != input.sizes() ||
      !is_our_group("aten::native_group_norm_backward", input, weight, {}, batch, channels, pixels, groups) ||
      !are_reduced("aten::native_group_norm_backward", gradient))
    return at::cpu::native_group_norm_backward(gradient, input, of_mean, of_scale, of_weight, batch, channels,
                                               pixels, groups, wanted);
  const at::Tensor x = widened(input).contiguous();
  const at::Tensor gradients = gradient.to(x.scalar_type()).contiguous();
  const int64_t each = channels / groups;
  const at::Tensor mean = as_doubles(of_mean, 0, 0).view({batch * groups, 1});
  const at::Tensor factors = as_doubles(weight, channels, 1);
  const std::vector<int64_t> rows{batch * channels, pixels};
  const at::Tensor shift = mean.expand({batch * groups, each}).contiguous();
  // The sums of each channel of each example are added up for each group, and for each channel.
  const at::Tensor sums =
      sums_over(x.view(rows), Dimensions(2), Terms::Products, shift, gradients.view(rows));
  const at::Tensor weighted = (sums.view({2, batch, channels}) * factors).view({2, batch * groups, each});
  const at::Tensor of_groups = sums_over(weighted, Dimensions(4), Terms::Elements);
  const at::Tensor scales = as_doubles(of_scale, 0, 0);
  const double* const scale = scales.data_ptr<double>();
  const double* const means = mean.data_ptr<double>();
  const double* const factor = factors.data_ptr<double>();
  const double* const of_group = of_groups.data_ptr<double>();
  Values values(x, 4, batch * channels);
  const auto terms = static_cast<double>(each * pixels);
  for (int64_t i = 0; i < batch * channels; ++i) {
    const int64_t g = i / each;
    const double r = scale[g];
    values.set(0, i, means[g]);
    values.set(1, i, -r * r * r * of_group[batch * groups + g] / terms);
    values.set(2, i, r * factor[i % channels]);
    values.set(3, i, -r * of_group[g] / terms);
  }
  Three result;
  const at::ScalarType type = statistics_type(input, weight);
  if (wanted[0])
    std::get<0>(result) =
        apply_values(Normalisation::Backward, x, gradients, values, pixels, /*of_rows=*/true)
            .to(input.scalar_type())
            .contiguous(input.suggest_memory_format());
  const at::Tensor of_example = sums.view({2, batch, groups, each});
  if (wanted[1]) {
    const at::Tensor scaled = (of_example[1] * scales.view({batch, groups, 1})).view({batch, channels});
    std::get<1>(result) = sums_over(scaled, Dimensions(1), Terms::Elements).view({channels}).to(type);
  }
  if (wanted[2])
    std::get<2>(result) = sums_over(of_example[0].view({batch, channels}), Dimensions(1), Terms::Elements)
                              .view({channels})
                              .to(type);
  return result;
}

}  // namespace

void register_group_norm(Registrar& library) {
  library.impl("native_group_norm", group_norm);
  library.impl("native_group_norm_backward", group_norm_backward);
}

}  // namespace tutti::kernels
