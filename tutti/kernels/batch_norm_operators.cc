// batch_norm and its gradients. LibTorch makes instance_norm of batch_norm.
#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include <ATen/ops/batch_norm_update_stats_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_cpu_dispatch.h>

#include "tutti/kernels/normalised_tensors.h"
#include "tutti/kernels/operators.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/results.h"
#include "tutti/kernels/tensor_sums.h"

namespace tutti::kernels {
namespace {

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

// Returns true if each channel is to be summed and normalised before the next one, so that its elements are
// still in the caches. They have to be enough to be worth calls of their own.
bool are_single(const Channels& of) {
  constexpr int64_t kWorthCalls = 4096;
  return !of.last && of.channels > 1 && of.each >= kWorthCalls && of.x.size(0) <= kBlockTerms;
}

// The rows of one channel, one for each example.
template <class T>
class ChannelRows {
 public:
  ChannelRows(const Channels& of, const ScaledRows<T>& all)
      : all_(all),
        batch_(of.x.size(0)),
        channels_(of.channels),
        pixels_(of.each / batch_),
        blocks_((pixels_ + kBlockTerms - 1) / kBlockTerms),
        shifts_(static_cast<size_t>(batch_)),
        sums_(static_cast<size_t>(2 * blocks_ * batch_)) {}

  // Writes two sums over all rows, in the order of sums_over(): over each row, and then over these.
  void sum(Terms terms, int64_t channel, double shift, double* sums) {
    std::fill(shifts_.begin(), shifts_.end(), shift);
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t at = channel * pixels_ + block * kBlockTerms;
      sum_block(terms,
                SumBlock<T>{all_.x + at, all_.gradient == nullptr ? nullptr : all_.gradient + at,
                            std::min(kBlockTerms, pixels_ - block * kBlockTerms), 1, batch_,
                            channels_ * pixels_, 1, shifts_.data()},
                sums_.data() + 2 * block * batch_, batch_);
    }
    join_blocks(terms, sums_.data(), blocks_, 2 * batch_);
    for (int64_t s = 0; s < 2; ++s)
      sum_block(Terms::Elements,
                SumBlock<double>{sums_.data() + s * batch_, nullptr, batch_, 1, 1, batch_, 1, nullptr},
                sums + s, 1);
  }

  void apply_values(Normalisation normalisation, int64_t channel) const {
    ScaledRows<T> rows = all_;
    const int64_t at = channel * pixels_;
    rows.x += at;
    if (rows.gradient != nullptr) rows.gradient += at;
    rows.out += at;
    rows.rows = batch_;
    rows.step = channels_ * pixels_;
    for (const T*& value : rows.values)
      if (value != nullptr) value += channel;
    rows.count = 1;
    apply(normalisation, rows);
  }

  double first(int64_t channel) const { return all_.x[channel * pixels_]; }

 private:
  const ScaledRows<T> all_;
  const int64_t batch_;
  const int64_t channels_;
  const int64_t pixels_;
  const int64_t blocks_;
  std::vector<double> shifts_;
  std::vector<double> sums_;
};

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

Three our_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& running_mean, const at::Tensor& running_variance, bool training,
                     double momentum, double eps) {
  const Channels of = channels_of(input);
  const at::ScalarType type = statistics_type(input, weight);
  const at::Tensor factors = as_doubles(weight, of.channels, 1);
  const at::Tensor offsets = as_doubles(bias, of.channels, 0);
  const at::Tensor scales = at::empty({of.channels}, at::kDouble);
  const double* const factor = factors.data_ptr<double>();
  const double* const offset = offsets.data_ptr<double>();
  double* const scale = scales.data_ptr<double>();
  Values values(of.x, 3, of.channels);
  const auto set_values = [&](int64_t c, double mean, double variance) {
    scale[c] = scale_of(variance, eps);
    values.set(0, c, mean);
    values.set(1, c, scale[c] * factor[c]);
    values.set(2, c, offset[c]);
  };
  const int64_t length = of.last ? of.channels : of.each / input.size(0);
  Statistics statistics;
  at::Tensor out;
  if (training && are_single(of)) {
    statistics = {at::empty({of.channels}, at::kDouble), at::empty({of.channels}, at::kDouble)};
    out = at::empty_like(of.x);
    double* const means = statistics.mean.data_ptr<double>();
    double* const variances = statistics.variance.data_ptr<double>();
    by_type(of.x, [&](auto zero) {
      using T = decltype(zero);
      const ScaledRows<T> all = scaled_rows<T>(of.x, {}, out, values, length, true);
      in_parallel(of.channels, 4 * of.each, [&](int64_t first, int64_t last) {
        ChannelRows<T> rows(of, all);
        for (int64_t c = first; c < last; ++c) {
          double sums[2];
          rows.sum(Terms::Moments, c, rows.first(c), sums);
          const Moments moments(rows.first(c), sums[0], sums[1], of.each);
          means[c] = moments.mean;
          variances[c] = moments.variance;
          set_values(c, moments.mean, moments.variance);
          rows.apply_values(Normalisation::Forward, c);
        }
      });
    });
  } else {
    statistics = training ? statistics_of(of.x, around_channels(), of.each)
                          : Statistics{as_doubles(running_mean, 0, 0), as_doubles(running_variance, 0, 0)};
    const double* const means = statistics.mean.data_ptr<double>();
    const double* const variances = statistics.variance.data_ptr<double>();
    for (int64_t c = 0; c < of.channels; ++c) set_values(c, means[c], variances[c]);
    out = apply_values(Normalisation::Forward, of.x, {}, values, length, !of.last);
  }
  if (training) update_running(running_mean, running_variance, statistics, of.each, momentum);
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
  const double* const scales = scale.data_ptr<double>();
  const double* const weights = factors.data_ptr<double>();
  const double* const means = mean.data_ptr<double>();
  const auto terms = static_cast<double>(of.each);
  const auto set_values = [&](int64_t c, double sum, double of_products) {
    const double r = scales[c];
    const double factor = r * weights[c];
    values.set(0, c, means[c]);
    values.set(1, c, training ? -factor * r * r * of_products / terms : 0);
    values.set(2, c, factor);
    values.set(3, c, training ? -factor * sum / terms : 0);
    parameters.set(0, c, of_products * r);
    parameters.set(1, c, sum);
  };
  const int64_t length = of.last ? of.channels : of.each / input.size(0);
  at::Tensor out;
  if (are_single(of)) {
    out = wanted[0] ? at::empty_like(of.x) : of.x;
    by_type(of.x, [&](auto zero) {
      using T = decltype(zero);
      const ScaledRows<T> all = scaled_rows<T>(of.x, gradients, out, values, length, true);
      in_parallel(of.channels, 4 * of.each, [&](int64_t first, int64_t last) {
        ChannelRows<T> rows(of, all);
        for (int64_t c = first; c < last; ++c) {
          double sums[2];
          rows.sum(Terms::Products, c, means[c], sums);
          set_values(c, sums[0], sums[1]);
          if (wanted[0]) rows.apply_values(Normalisation::Backward, c);
        }
      });
    });
  } else {
    const at::Tensor sums = sums_over(of.x, around_channels(), Terms::Products, mean, gradients);
    const double* const sum = sums.data_ptr<double>();
    for (int64_t c = 0; c < of.channels; ++c) set_values(c, sum[c], sum[of.channels + c]);
    if (wanted[0]) out = apply_values(Normalisation::Backward, of.x, gradients, values, length, !of.last);
  }
  Three result;
  if (wanted[0]) std::get<0>(result) = out.to(input.scalar_type());
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

}  // namespace

void register_batch_norm(Registrar& library) {
  library.impl("native_batch_norm", batch_norm);
  library.impl("_native_batch_norm_legit", batch_norm_legit);
  library.impl("_native_batch_norm_legit.no_stats", batch_norm_without_running);
  library.impl("batch_norm_update_stats", batch_norm_update_stats);
  library.impl("native_batch_norm_backward", batch_norm_backward);
}

}  // namespace tutti::kernels
