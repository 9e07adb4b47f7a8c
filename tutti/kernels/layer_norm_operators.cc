// layer_norm and its gradients. LibTorch makes rms_norm of mean and rsqrt.
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>

#include "tutti/kernels/normalisations.h"
#include "tutti/kernels/normalised_tensors.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

// Returns a parameter in the type of `x`, which is the parameter's own or a wider one.
at::Tensor parameter(const at::Tensor& tensor, const at::Tensor& x, double otherwise, int64_t count) {
  if (!tensor.defined()) return at::empty({count}, x.options()).fill_(otherwise);
  return tensor.to(x.scalar_type()).contiguous();
}

struct LayerSizes {
  int64_t rows = 1;
  int64_t length = 1;
  std::vector<int64_t> statistics;  // the sizes of means and scales
};

LayerSizes layer_sizes(const at::Tensor& x, size_t normalised) {
  LayerSizes result;
  const auto outer = static_cast<int64_t>(static_cast<size_t>(x.dim()) - normalised);
  for (int64_t i = 0; i < x.dim(); ++i) {
    (i < outer ? result.rows : result.length) *= x.size(i);
    result.statistics.push_back(i < outer ? x.size(i) : 1);
  }
  return result;
}

bool is_our_layer(std::string_view name, const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight,
                  const at::Tensor& bias) {
  const auto fits = [&](const at::Tensor& each) { return !each.defined() || each.sizes() == shape; };
  if (shape.empty() || static_cast<size_t>(x.dim()) < shape.size() || x.numel() == 0 ||
      x.sizes().slice(static_cast<size_t>(x.dim()) - shape.size()) != shape || !fits(weight) || !fits(bias))
    return false;
  return are_reduced(name, x, weight, bias);
}

Three layer_norm(const at::Tensor& input, at::IntArrayRef shape, const Optional& of_weight,
                 const Optional& of_bias, double eps) {
  const at::Tensor weight = given(of_weight);
  const at::Tensor bias = given(of_bias);
  if (!is_our_layer("aten::native_layer_norm", input, shape, weight, bias))
    return at::cpu::native_layer_norm(input, shape, of_weight, of_bias, eps);
  const at::Tensor x = widened(input).contiguous();
  const LayerSizes sizes = layer_sizes(x, shape.size());
  const at::Tensor factors = parameter(weight, x, 1, sizes.length);
  const at::Tensor offsets = parameter(bias, x, 0, sizes.length);
  const at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor mean = at::empty(sizes.statistics, x.options());
  const at::Tensor scale = at::empty(sizes.statistics, x.options());
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const LayerRows<T> all{x.data_ptr<T>(),   factors.data_ptr<T>(), offsets.data_ptr<T>(),
                           out.data_ptr<T>(), mean.data_ptr<T>(),    scale.data_ptr<T>(),
                           sizes.rows,        sizes.length,          eps};
    in_parallel(sizes.rows, 4 * sizes.length, [&](int64_t first, int64_t last) {
      LayerRows<T> part = all;
      part.x += first * sizes.length;
      part.out += first * sizes.length;
      part.mean += first;
      part.scale += first;
      part.rows = last - first;
      normalise(part);
    });
  });
  const at::ScalarType type = statistics_type(input, weight);
  return {out.to(input.scalar_type()), mean.to(type), scale.to(type)};
}

// Returns the gradients of bias and weight, sums over all rows.
template <class T>
std::pair<at::Tensor, at::Tensor> layer_parameter_gradients(const LayerColumns<T>& of, const at::Tensor& x) {
  constexpr int64_t kPart = 128;
  const int64_t parts = (of.width + kPart - 1) / kPart;
  const int64_t blocks = (of.rows + kBlockTerms - 1) / kBlockTerms;
  std::vector<double> sums(static_cast<size_t>(blocks * 2 * of.width));
  in_parallel(blocks * parts, 4 * kPart * std::min(of.rows, kBlockTerms), [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t row = piece / parts * kBlockTerms;
      const int64_t column = piece % parts * kPart;
      LayerColumns<T> part = of;
      part.gradient += row * of.step + column;
      part.x += row * of.step + column;
      part.mean += row;
      part.scale += row;
      part.rows = std::min(kBlockTerms, of.rows - row);
      part.width = std::min(kPart, of.width - column);
      sum_columns(part, sums.data() + piece / parts * 2 * of.width + column, of.width);
    }
  });
  join_blocks(Terms::Elements, sums.data(), blocks, 2 * of.width);
  const at::Tensor bias = at::empty({of.width}, x.options());
  const at::Tensor weight = at::empty({of.width}, x.options());
  for (int64_t c = 0; c < of.width; ++c) {
    bias.data_ptr<T>()[c] = static_cast<T>(sums[static_cast<size_t>(c)]);
    weight.data_ptr<T>()[c] = static_cast<T>(sums[static_cast<size_t>(of.width + c)]);
  }
  return {bias, weight};
}

Three layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input, at::IntArrayRef shape,
                          const at::Tensor& of_mean, const at::Tensor& of_scale, const Optional& of_weight,
                          const Optional& of_bias, std::array<bool, 3> wanted) {
  const at::Tensor weight = given(of_weight);
  if (gradient.sizes() != input.sizes() ||
      !is_our_layer("aten::native_layer_norm_backward", input, shape, weight, given(of_bias)) ||
      !are_reduced("aten::native_layer_norm_backward", gradient))
    return at::cpu::native_layer_norm_backward(gradient, input, shape, of_mean, of_scale, of_weight, of_bias,
                                               wanted);
  const at::Tensor x = widened(input).contiguous();
  const LayerSizes sizes = layer_sizes(x, shape.size());
  const at::Tensor gradients = gradient.to(x.scalar_type()).contiguous();
  const at::Tensor factors = parameter(weight, x, 1, sizes.length);
  const at::Tensor mean = of_mean.to(x.scalar_type()).contiguous();
  const at::Tensor scale = of_scale.to(x.scalar_type()).contiguous();
  Three result;
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    if (wanted[0]) {
      const at::Tensor out = at::empty(x.sizes(), x.options());
      const LayerGradientRows<T> all{gradients.data_ptr<T>(),
                                     x.data_ptr<T>(),
                                     factors.data_ptr<T>(),
                                     mean.data_ptr<T>(),
                                     scale.data_ptr<T>(),
                                     out.data_ptr<T>(),
                                     sizes.rows,
                                     sizes.length};
      in_parallel(sizes.rows, 8 * sizes.length, [&](int64_t first, int64_t last) {
        LayerGradientRows<T> part = all;
        part.gradient += first * sizes.length;
        part.x += first * sizes.length;
        part.mean += first;
        part.scale += first;
        part.out += first * sizes.length;
        part.rows = last - first;
        differentiate(part);
      });
      std::get<0>(result) = out.to(input.scalar_type());
    }
    if (wanted[1] || wanted[2]) {
      const LayerColumns<T> all{gradients.data_ptr<T>(),
                                x.data_ptr<T>(),
                                mean.data_ptr<T>(),
                                scale.data_ptr<T>(),
                                sizes.rows,
                                sizes.length,
                                sizes.length};
      const auto [of_biases, of_weights] = layer_parameter_gradients(all, x);
      const at::ScalarType type = weight.defined() ? weight.scalar_type() : input.scalar_type();
      if (wanted[1]) std::get<1>(result) = of_weights.reshape(shape).to(type);
      if (wanted[2]) std::get<2>(result) = of_biases.reshape(shape).to(type);
    }
  });
  return result;
}

}  // namespace

void register_layer_norm(Registrar& library) {
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
}

}  // namespace tutti::kernels
