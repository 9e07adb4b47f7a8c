#include "tutti/nn/sync_batch_norm.h"

#include <ios>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The operation that error messages name if a worker does not take part.
constexpr const char* kForward = "the forward of SyncBatchNorm, which all workers must call equally often";
constexpr const char* kBackward = "the backward of SyncBatchNorm, which all workers must call equally often";

torch::ScalarType statistics_type(const Tensor& input) {
  return input.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

// Reshapes a vector of one value per channel so that it can be broadcast over the input.
Tensor spread(const Tensor& channels, const Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = channels.numel();
  return channels.view(sizes);
}

const double* data_of(const Tensor& float64) { return static_cast<const double*>(float64.data_ptr()); }
double* data_of(Tensor& float64) { return static_cast<double*>(float64.data_ptr()); }

// Gathers the vector `mine` of every worker. Returns one row per rank: float64 on the CPU.
Tensor gather_rows(comm::Communicator& group, const Tensor& mine, const char* what) {
  const Tensor row = mine.to(torch::kCPU, torch::kFloat64);
  const Tensor rows = torch::empty({group.world(), row.numel()}, row.options());
  group.all_gather(rows, row, {.what = what}).wait();
  return rows;
}

// The moments of each channel over some examples.
struct Moments {
  double count = 0;  // the number of values per channel
  Tensor mean;       // float64 on the CPU, like m2
  Tensor m2;         // the sum of the squared distances from the mean
};

// Returns this worker's contribution: count, means, m2s.
Tensor moments_row(const Tensor& input) {
  const int64_t channels = input.size(1);
  if (input.numel() == 0) return torch::zeros({1 + 2 * channels}, torch::kFloat64);
  const int64_t values = input.numel() / channels;
  const auto count = static_cast<double>(values);
  const auto [mean, variance] =
      torch::batch_norm_update_stats(input.to(statistics_type(input)), Tensor(), Tensor(), 0);
  return torch::cat({torch::full({1}, count, mean.options().dtype(torch::kFloat64)), mean.to(torch::kFloat64),
                     variance.to(torch::kFloat64) * count});
}

// Merges two sets of examples. See Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for
// computing sample variances (1979). A plain loop, so it gives the same bits on all machines.
void merge(Moments& all, const double* row) {
  const double count = row[0];
  if (count == 0) return;
  const int64_t channels = all.mean.numel();
  const double total = all.count + count;
  double* mean = data_of(all.mean);
  double* m2 = data_of(all.m2);
  for (int64_t c = 0; c < channels; ++c) {
    const double delta = row[1 + c] - mean[c];
    mean[c] += delta * (count / total);
    m2[c] += row[1 + channels + c] + delta * delta * (all.count * count / total);
  }
  all.count = total;
}

Moments moments_of_all(comm::Communicator& group, const Tensor& input) {
  const torch::NoGradGuard no_grad;
  const Tensor rows = gather_rows(group, moments_row(input), kForward);
  const Tensor zeros = torch::zeros({input.size(1)}, torch::kFloat64);
  Moments all{0, zeros, zeros.clone()};
  for (int64_t r = 0; r < rows.size(0); ++r) merge(all, data_of(rows) + r * rows.size(1));
  if (all.count < 2) {
    fail(ErrorKind::InvalidArgument,
         "SyncBatchNorm: in this step all {} workers together have {} values per channel, but training needs "
         "at least two",
         group.world(), all.count);
  }
  return all;
}

// running = (1 - momentum) * running + momentum * fresh, rounded once.
void track(const Tensor& running, const Tensor& fresh, double momentum) {
  const torch::NoGradGuard no_grad;
  running.copy_(running.to(torch::kFloat64).mul_(1 - momentum).add_(fresh.to(running.device()), momentum));
}

// Adds the rows of all workers in rank order.
Tensor sum_rows(const Tensor& rows) {
  Tensor sums = torch::zeros({rows.size(1)}, torch::kFloat64);
  double* to = data_of(sums);
  const double* from = data_of(rows);
  for (int64_t i = 0; i < rows.numel(); ++i) to[i % rows.size(1)] += from[i];
  return sums;
}

// The data that normalisation needs from the examples of all workers.
struct Normaliser {
  Tensor mean;      // on the input's device, of the statistics' type, like variance
  Tensor variance;  // biased
  double eps;
  double count;
  std::shared_ptr<comm::Communicator> group;
};

// Keeps the communicator alive as long as a graph needs it.
struct GroupHolder final : torch::CustomClassHolder {
  explicit GroupHolder(std::shared_ptr<comm::Communicator> given) : group(std::move(given)) {}
  const std::shared_ptr<comm::Communicator> group;
};

// y = (x - mean) * invstd * weight + bias, where mean and invstd depend on the x of all workers.
struct Normalise : torch::autograd::Function<Normalise> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Normaliser& normaliser) {
    context->save_for_backward({x, weight, normaliser.mean, normaliser.variance});
    context->saved_data["eps"] = normaliser.eps;
    context->saved_data["count"] = normaliser.count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(normaliser.group));
    if (x.numel() == 0) return torch::empty_like(x);
    return torch::batch_norm(x, weight, bias, normaliser.mean, normaliser.variance, /*training=*/false,
                             /*momentum=*/0, normaliser.eps, torch::globalContext().userEnabledCuDNN());
  }

  // With normed = (x - mean) * invstd: d weight = sum(dy * normed) and d bias = sum(dy) over the examples of
  // this worker, and
  //   dx = weight * invstd * (dy - all(d bias) / count - normed * all(d weight) / count)
  // with both summed over all workers.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (torch::GradMode::is_enabled())
      fail(ErrorKind::Unimplemented,
           "SyncBatchNorm has no second derivative: call backward without create_graph");
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor& mean = saved[2];
    const Tensor& variance = saved[3];
    const double eps = context->saved_data["eps"].toDouble();
    const Tensor& dy = gradients[0];
    const auto [dweight, dbias] = local_sums(dy, x, weight, mean, variance, eps);
    if (!context->needs_input_grad(0)) return {Tensor(), dweight, dbias, Tensor()};

    const auto holder = context->saved_data["group"].toCapsule();
    const Tensor row = torch::cat({dweight, dbias});
    const Tensor means = sum_rows(gather_rows(*static_cast<GroupHolder&>(*holder).group, row, kBackward))
                             .div_(context->saved_data["count"].toDouble())
                             .to(mean.options());
    const Tensor invstd = (variance + eps).rsqrt();
    const Tensor scale = weight * invstd;
    const int64_t channels = mean.numel();
    const Tensor slope = -scale * invstd * means.narrow(0, 0, channels);
    const Tensor shift = -scale * means.narrow(0, channels, channels);
    const Tensor dx = torch::addcmul(spread(shift, x), x - spread(mean, x), spread(slope, x))
                          .addcmul_(dy.to(mean.scalar_type()), spread(scale, x));
    return {dx.to(x.scalar_type()), dweight, dbias, Tensor()};
  }

 private:
  // Returns the same sums as if mean and variance were constants.
  static std::pair<Tensor, Tensor> local_sums(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                              const Tensor& mean, const Tensor& variance, double eps) {
    if (x.numel() == 0) return {torch::zeros_like(mean), torch::zeros_like(mean)};
    // What a forward pass with constants saves, without which CUDA's kernel fails.
    const Tensor nothing = torch::empty({0}, mean.options());
    const auto [none, dweight, dbias] = torch::native_batch_norm_backward(
        dy, x, weight, mean, variance, nothing, nothing, /*train=*/false, eps, {false, true, true});
    return {dweight, dbias};
  }
};

}  // namespace

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  if (input.dim() >= 2 && input.dim() <= 5 && input.size(1) == options.num_features()) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm of {} channels expects an input with 2 to 5 dimensions and the channels in the second "
       "one; its shape is [{}]",
       options.num_features(), fmt::join(input.sizes(), ","));
}

// Counts the batch and returns the weight of its statistics in the running statistics.
double SyncBatchNormImpl::count_batch() {
  if (is_training() && num_batches_tracked.defined()) {
    num_batches_tracked += 1;
    if (!options.momentum().has_value()) return 1 / num_batches_tracked.item<double>();
  }
  return options.momentum().value_or(0);
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  _check_input_dim(input);
  const double momentum = count_batch();
  if (is_training() && group_ && group_->world() > 1) return forward_together(input, momentum);
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !options.track_running_stats(), momentum,
                                                   options.eps());
}

Tensor SyncBatchNormImpl::forward_together(const Tensor& input, double momentum) {
  const Moments all = moments_of_all(*group_, input);
  if (options.track_running_stats()) {
    track(running_mean, all.mean, momentum);
    track(running_var, all.m2 / (all.count - 1), momentum);
  }
  const auto type = torch::dtype(statistics_type(input)).device(input.device());
  const Normaliser normaliser{all.mean.to(type), (all.m2 / all.count).to(type), options.eps(), all.count,
                              group_};
  const int64_t channels = options.num_features();
  return Normalise::apply(input, options.affine() ? weight.to(type) : torch::ones({channels}, type),
                          options.affine() ? bias.to(type) : torch::zeros({channels}, type), normaliser);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "tutti::nn::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "none";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ")";
}

}  // namespace tutti::nn
