// layer_norm, batch_norm, group_norm and their gradients. LibTorch makes instance_norm of batch_norm, and
// rms_norm of mean and rsqrt.
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include <ATen/ops/batch_norm_update_stats_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_cpu_dispatch.h>
#include <ATen/ops/native_group_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_group_norm_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_layer_norm_cpu_dispatch.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "tutti/kernels/normalisations.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

using Optional = c10::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor given(const Optional& tensor) { return tensor.has_value() ? *tensor : at::Tensor(); }

// Returns a parameter in the type of `x`, which is the parameter's own or a wider one.
at::Tensor parameter(const at::Tensor& tensor, const at::Tensor& x, double otherwise, int64_t count) {
  if (!tensor.defined()) return at::empty({count}, x.options()).fill_(otherwise);
  return tensor.to(x.scalar_type()).contiguous();
}

// Returns the type of means and scales: the type of the weight, which may be wider than x, or else of x.
at::ScalarType statistics_type(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? weight.scalar_type() : x.scalar_type();
}

template <class Function>
void by_type(const at::Tensor& x, const Function& function) {
  if (x.scalar_type() == at::kFloat) return function(float());
  function(double());
}

// Layer normalisation

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

// Batch and group normalisation

// A tensor [N, C, ...] whose elements lie in rows of one channel, or in rows of all channels.
struct Channels {
  at::Tensor x;
  at::MemoryFormat format;
  int64_t channels;
  int64_t each;  // elements of one channel
  bool last;     // the channels lie together
};

Channels channels_of(const at::Tensor& input) {
  Channels result{widened(input), input.suggest_memory_format(), input.size(1), 0, false};
  result.x = result.x.contiguous(result.format);
  result.each = input.numel() / result.channels;
  result.last = result.format != at::MemoryFormat::Contiguous || result.each == input.size(0);
  return result;
}

// Sums of a channel are made over all dimensions but the second one.
Dimensions around_channels() { return ~Dimensions(2); }

// Values of rows or columns, each in the type of x, that are computed in doubles.
class Values {
 public:
  Values(const at::Tensor& x, int64_t kinds, int64_t count)
      : all_(at::empty({kinds, count}, x.options())),
        count_(count),
        floats_(x.scalar_type() == at::kFloat ? all_.data_ptr<float>() : nullptr),
        doubles_(x.scalar_type() == at::kDouble ? all_.data_ptr<double>() : nullptr) {}

  void set(int64_t kind, int64_t i, double value) {
    const int64_t at = kind * count_ + i;
    if (floats_ != nullptr)
      floats_[at] = static_cast<float>(value);
    else
      doubles_[at] = value;
  }
  template <class T>
  const T* of(int64_t kind) const {
    return kind < all_.size(0) ? all_.data_ptr<T>() + kind * count_ : nullptr;
  }
  int64_t count() const { return count_; }

 private:
  at::Tensor all_;
  int64_t count_;
  float* floats_;
  double* doubles_;
};

// Applies the values, of rows of `length` elements or of columns, to x.
at::Tensor apply_values(Normalisation normalisation, const at::Tensor& x, const at::Tensor& gradient,
                        const Values& values, int64_t length, bool of_rows) {
  const at::Tensor out = at::empty_like(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const ScaledRows<T> all{x.data_ptr<T>(),
                            gradient.defined() ? gradient.data_ptr<T>() : nullptr,
                            out.data_ptr<T>(),
                            0,
                            x.numel() / length,
                            length,
                            {values.of<T>(0), values.of<T>(1), values.of<T>(2), values.of<T>(3)},
                            values.count(),
                            of_rows};
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

at::Tensor as_doubles(const at::Tensor& tensor, int64_t count, double otherwise) {
  if (!tensor.defined()) return at::empty({count}, at::kDouble).fill_(otherwise);
  return tensor.to(at::kDouble).contiguous();
}

// The means and variances of channels, as doubles.
struct Statistics {
  at::Tensor mean;
  at::Tensor variance;
};

Statistics statistics_of(const at::Tensor& x, Dimensions dimensions, int64_t count) {
  const at::Tensor shift = first_elements(x, dimensions);
  const at::Tensor sums = sums_over(x, dimensions, Terms::Moments, shift);
  const at::Tensor mean = at::empty({shift.numel()}, shift.options());
  const at::Tensor variance = at::empty({shift.numel()}, shift.options());
  const auto terms = static_cast<double>(count);
  const double* const first = shift.data_ptr<double>();
  const double* const sum = sums.data_ptr<double>();
  double* const means = mean.data_ptr<double>();
  double* const variances = variance.data_ptr<double>();
  const int64_t sums_each = shift.numel();
  for (int64_t i = 0; i < sums_each; ++i) {
    const double rest = sum[sums_each + i] - sum[i] * (sum[i] / terms);
    means[i] = first[i] + sum[i] / terms;
    variances[i] = rest < 0 ? 0 : rest / terms;
  }
  return {mean, variance};
}

// Moves a running mean or variance towards a new one. A variance over the batch is multiplied by
// `factor`, which makes it an unbiased estimate.
void move_towards(const at::Tensor& running, const at::Tensor& now, double momentum, double factor = 1) {
  if (!running.defined()) return;
  const at::Tensor moved = as_doubles(running, 0, 0).clone();
  double* const to = moved.data_ptr<double>();
  const double* const from = now.data_ptr<double>();
  for (int64_t i = 0; i < now.numel(); ++i) to[i] = momentum * (from[i] * factor) + (1 - momentum) * to[i];
  running.copy_(moved);
}

void update_running(const at::Tensor& mean, const at::Tensor& variance, const Statistics& now, int64_t count,
                    double momentum) {
  const auto terms = static_cast<double>(count);
  move_towards(mean, now.mean, momentum);
  move_towards(variance, now.variance, momentum, terms / (terms - 1));
}

bool is_our_batch(std::string_view name, const at::Tensor& input, const at::Tensor& weight,
                  const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& variance, bool training) {
  if (input.dim() < 2 || input.numel() == 0) return false;
  const auto fits = [&](const at::Tensor& each) { return !each.defined() || each.numel() == input.size(1); };
  if (!fits(weight) || !fits(bias) || !fits(mean) || !fits(variance)) return false;
  if (!training && (!mean.defined() || !variance.defined())) return false;
  return are_reduced(name, input, weight, bias, mean, variance);
}

double scale_of(double variance, double eps) { return 1 / std::sqrt(variance + eps); }

Three our_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& running_mean, const at::Tensor& running_variance, bool training,
                     double momentum, double eps) {
  const Channels of = channels_of(input);
  const at::ScalarType type = statistics_type(input, weight);
  Statistics statistics;
  if (training) {
    statistics = statistics_of(of.x, around_channels(), of.each);
    update_running(running_mean, running_variance, statistics, of.each, momentum);
  } else {
    statistics = {as_doubles(running_mean, 0, 0), as_doubles(running_variance, 0, 0)};
  }
  const at::Tensor factors = as_doubles(weight, of.channels, 1);
  const at::Tensor offsets = as_doubles(bias, of.channels, 0);
  const at::Tensor scales = at::empty({of.channels}, at::kDouble);
  const double* const mean = statistics.mean.data_ptr<double>();
  const double* const variance = statistics.variance.data_ptr<double>();
  const double* const factor = factors.data_ptr<double>();
  const double* const offset = offsets.data_ptr<double>();
  double* const scale = scales.data_ptr<double>();
  Values values(of.x, 3, of.channels);
  for (int64_t c = 0; c < of.channels; ++c) {
    scale[c] = scale_of(variance[c], eps);
    values.set(0, c, mean[c]);
    values.set(1, c, scale[c] * factor[c]);
    values.set(2, c, offset[c]);
  }
  const int64_t length = of.last ? of.channels : of.each / input.size(0);
  const at::Tensor out = apply_values(Normalisation::Forward, of.x, {}, values, length, !of.last);
  const at::TensorOptions options = input.options().dtype(type);
  if (!training) return {out.to(input.scalar_type()), at::empty({0}, options), at::empty({0}, options)};
  return {out.to(input.scalar_type()), statistics.mean.to(type), scales.to(type)};
}

Three batch_norm(const at::Tensor& input, const Optional& weight, const Optional& bias, const Optional& mean,
                 const Optional& variance, bool training, double momentum, double eps) {
  if (!is_our_batch("aten::native_batch_norm", input, given(weight), given(bias), given(mean),
                    given(variance), training))
    return at::cpu::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
  return our_batch_norm(input, given(weight), given(bias), given(mean), given(variance), training, momentum,
                        eps);
}

// The variants of newer versions, of which the second one has no running means.
Three batch_norm_legit(const at::Tensor& input, const Optional& weight, const Optional& bias,
                       at::Tensor& mean, at::Tensor& variance, bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
}

Three batch_norm_without_running(const at::Tensor& input, const Optional& weight, const Optional& bias,
                                 bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

std::tuple<at::Tensor, at::Tensor> batch_norm_update_stats(const at::Tensor& input, const Optional& mean,
                                                           const Optional& variance, double momentum) {
  if (!is_our_batch("aten::batch_norm_update_stats", input, {}, {}, given(mean), given(variance), true))
    return at::cpu::batch_norm_update_stats(input, mean, variance, momentum);
  const Channels of = channels_of(input);
  const Statistics statistics = statistics_of(of.x, around_channels(), of.each);
  update_running(given(mean), given(variance), statistics, of.each, momentum);
  const at::ScalarType type = statistics_type(input, given(mean));
  return {statistics.mean.to(type), statistics.variance.to(type)};
}

Three batch_norm_backward(const at::Tensor& gradient, const at::Tensor& input, const Optional& of_weight,
                          const Optional& running_mean, const Optional& running_variance,
                          const Optional& of_mean, const Optional& of_scale, bool training, double eps,
                          std::array<bool, 3> wanted) {
  const at::Tensor weight = given(of_weight);
  if (gradient.sizes() != input.sizes() ||
      !is_our_batch("aten::native_batch_norm_backward", input, weight, {}, given(running_mean),
                    given(running_variance), training) ||
      !are_reduced("aten::native_batch_norm_backward", gradient))
    return at::cpu::native_batch_norm_backward(gradient, input, of_weight, running_mean, running_variance,
                                               of_mean, of_scale, training, eps, wanted);
  const Channels of = channels_of(input);
  const at::Tensor gradients = gradient.to(of.x.scalar_type()).contiguous(of.format);
  const at::Tensor mean = as_doubles(training ? given(of_mean) : given(running_mean), 0, 0);
  at::Tensor scale = training ? as_doubles(given(of_scale), 0, 0) : at::empty({of.channels}, at::kDouble);
  if (!training) {
    const at::Tensor variance = as_doubles(given(running_variance), 0, 0);
    const double* const of_channel = variance.data_ptr<double>();
    double* const to = scale.data_ptr<double>();
    for (int64_t c = 0; c < of.channels; ++c) to[c] = scale_of(of_channel[c], eps);
  }
  const at::Tensor factors = as_doubles(weight, of.channels, 1);
  const at::Tensor of_weights = at::empty({of.channels}, of.x.options());
  const at::Tensor of_biases = at::empty({of.channels}, of.x.options());
  Values values(of.x, 4, of.channels);
  Values parameters(of.x, 2, of.channels);
  const at::Tensor sums = sums_over(of.x, around_channels(), Terms::Products, mean, gradients);
  const double* const sum = sums.data_ptr<double>();
  const double* const scales = scale.data_ptr<double>();
  const double* const weights = factors.data_ptr<double>();
  const double* const means = mean.data_ptr<double>();
  const auto terms = static_cast<double>(of.each);
  for (int64_t c = 0; c < of.channels; ++c) {
    const double r = scales[c];
    const double factor = r * weights[c];
    values.set(0, c, means[c]);
    values.set(1, c, training ? -factor * r * r * sum[of.channels + c] / terms : 0);
    values.set(2, c, factor);
    values.set(3, c, training ? -factor * sum[c] / terms : 0);
    parameters.set(0, c, sum[of.channels + c] * r);
    parameters.set(1, c, sum[c]);
  }
  Three result;
  const int64_t length = of.last ? of.channels : of.each / input.size(0);
  if (wanted[0])
    std::get<0>(result) = apply_values(Normalisation::Backward, of.x, gradients, values, length, !of.last)
                              .to(input.scalar_type());
  const at::ScalarType type = statistics_type(input, weight);
  by_type(of.x, [&](auto zero) {
    using T = decltype(zero);
    std::copy_n(parameters.of<T>(0), of.channels, of_weights.data_ptr<T>());
    std::copy_n(parameters.of<T>(1), of.channels, of_biases.data_ptr<T>());
  });
  if (wanted[1]) std::get<1>(result) = of_weights.to(type);
  if (wanted[2]) std::get<2>(result) = of_biases.to(type);
  return result;
}

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
  // Of each channel of each example; then of each group, and of each channel.
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

void register_normalisations(Registrar& library) {
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("native_batch_norm", batch_norm);
  library.impl("_native_batch_norm_legit", batch_norm_legit);
  library.impl("_native_batch_norm_legit.no_stats", batch_norm_without_running);
  library.impl("batch_norm_update_stats", batch_norm_update_stats);
  library.impl("native_batch_norm_backward", batch_norm_backward);
  library.impl("native_group_norm", group_norm);
  library.impl("native_group_norm_backward", group_norm_backward);
}

}  // namespace tutti::kernels
