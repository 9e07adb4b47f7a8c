#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/train/hooks.h"

namespace tutti::hooks {
namespace {

constexpr int64_t kStepsBetweenLooksAtGpu = 25;

std::optional<std::string> bad(const std::string& what, const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return std::nullopt;
  const auto wrong = tensor.numel() - torch::isfinite(tensor).sum().item<int64_t>();
  if (wrong == 0) return std::nullopt;
  return fmt::format("{} ({} of {} numbers are not finite)", what, wrong, tensor.numel());
}

// Looks in the order of the data flow; but NaNs in a batch are accepted if the model handles missing values.
std::string first_bad(const Parameters& parameters, const Batch& batch, const LossOutput& output) {
  const auto in_batch = [](const std::string& name) { return fmt::format("'{}' of the batch", name); };
  for (const auto& [name, tensor] : batch.tensors()) {
    if (tensor.is_floating_point() && !tensor.is_sparse() && torch::isinf(tensor).any().item<bool>())
      return *bad(in_batch(name), tensor);
  }
  for (const auto& view : parameters.trained()) {
    if (auto found = bad("parameter " + view.name, view.tensor)) return *found;
  }
  for (const auto& [name, tensor] : batch.tensors()) {
    if (tensor.is_sparse()) continue;
    if (auto found = bad(in_batch(name), tensor))
      return *found + "; or, if the model handles missing numbers, the values that it computes from them";
  }
  for (const auto& view : parameters.buffers()) {
    if (auto found = bad("buffer " + view.name, view.tensor)) return *found;
  }
  if (auto found = bad("the predictions", output.prediction)) return *found;
  return "the loss itself, since all values that it was computed from are finite";
}

}  // namespace

void nan_guard(const Parameters& parameters, int64_t step, int64_t lane, const Batch& batch,
               const LossOutput& output) {
  if (!output.loss.is_cpu() && step % kStepsBetweenLooksAtGpu != 0) return;
  const auto loss = output.loss.item<double>();
  if (std::isfinite(loss)) return;
  fail(ErrorKind::InvalidArgument,
       "the loss is {} at step {}, lane {}; the first tensor that is not finite is {}. Try a lower learning "
       "rate, or check the data; --no-nan-guard continues the training anyway",
       loss, step, lane, first_bad(parameters, batch, output));
}

void nan_guard(int64_t step, const torch::Tensor& loss_sum) {
  if (!loss_sum.defined() || (!loss_sum.is_cpu() && step % kStepsBetweenLooksAtGpu != 0)) return;
  const auto sum = loss_sum.item<double>();
  if (std::isfinite(sum)) return;
  fail(
      ErrorKind::InvalidArgument,
      "the loss is {} at step {}. Try a lower learning rate, or check the data; to hear which tensor is the "
      "first that is not finite, call Loop::observe() for each lane before its backward pass; --no-nan-guard "
      "continues the training anyway",
      sum, step);
}

std::vector<std::unique_ptr<Hook>> of_flags(const RunConfig& config) {
  std::vector<std::unique_ptr<Hook>> hooks;
  hooks.push_back(progress());
  if (!config.output.profile_steps.empty()) {
    if (config.checkpoints.logdir.empty() && config.output.timeline.empty())
      fail(ErrorKind::InvalidArgument,
           "--profile-steps needs an output file: give --timeline FILE or --logdir");
    hooks.push_back(profile(parse_step_interval(config.output.profile_steps),
                            (std::filesystem::path(config.checkpoints.logdir) / "trace.json").string()));
  }
  if (config.checkpoints.logdir.empty()) return hooks;
  hooks.push_back(summaries({.every = config.output.summary_every}));
  hooks.push_back(checkpoint(parse_every(config.checkpoints.every)));
  return hooks;
}

}  // namespace tutti::hooks
