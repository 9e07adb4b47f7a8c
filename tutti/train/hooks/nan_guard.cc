#include "tutti/train/hooks/nan_guard.h"

#include <cmath>
#include <optional>
#include <string>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::hooks {
namespace {

constexpr int64_t kStepsBetweenLooksAtGpu = 25;

std::optional<std::string> bad(const std::string& what, const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return std::nullopt;
  const auto wrong = tensor.numel() - torch::isfinite(tensor).sum().item<int64_t>();
  if (wrong == 0) return std::nullopt;
  return fmt::format("{} ({} of {} numbers are not finite)", what, wrong, tensor.numel());
}

// In the order in which the numbers flow; but what is missing in a batch is not bad where the model knows it.
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
      return *found + "; or, where the model knows what to do with missing numbers, what it makes of them";
  }
  for (const auto& view : parameters.buffers()) {
    if (auto found = bad("buffer " + view.name, view.tensor)) return *found;
  }
  if (auto found = bad("the predictions", output.prediction)) return *found;
  return "the loss itself: all it was computed from is finite";
}

void check(const Parameters& parameters, int64_t step, int64_t lane, const Batch& batch,
           const LossOutput& output) {
  if (!output.loss.is_cpu() && step % kStepsBetweenLooksAtGpu != 0) return;
  const auto loss = output.loss.item<double>();
  if (std::isfinite(loss)) return;
  fail(ErrorKind::InvalidArgument,
       "the loss is {} at step {}, lane {}; the first that went bad is {}. Try a lower learning rate, or "
       "look at "
       "the data; --no-nan-guard goes on all the same",
       loss, step, lane, first_bad(parameters, batch, output));
}

}  // namespace

LossCheck nan_guard() { return check; }

}  // namespace tutti::hooks
