#include "tutti/train/strategies/single.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

// Floating buffers are averaged over the lanes; the others, such as a count of batches, are those of the last
// lane, and the same after each, since every lane starts from what was there before the step.
std::vector<torch::Tensor> buffers_of(const Parameters& parameters) {
  std::vector<torch::Tensor> buffers(parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) buffers.push_back(view.tensor);
  }
  return buffers;
}

Batch take(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

torch::Tensor sum_of_losses(const LossOutput& output, const Batch& batch) {
  return output.loss.to(torch::kFloat64) * static_cast<double>(batch.size());
}

}  // namespace

Single::Single(Replica& replica, int64_t lanes)
    : replica_(replica),
      lanes_(lanes),
      buffers_(buffers_of(replica.parameters())),
      loss_sum_(
          torch::zeros({}, torch::TensorOptions().dtype(torch::kFloat64).device(replica.options().device))),
      sum_(summed(), {0, lanes}, lanes) {
  if (lanes_ == 1) return;
  for (const torch::Tensor& buffer : buffers_) before_.push_back(torch::empty_like(buffer));
}

TreeSum::Vectors Single::summed() {
  TreeSum::Vectors vectors;
  for (const auto& block : replica_.parameters().blocks()) vectors.push_back(block.grads);
  for (const torch::Tensor& vector : replica_.parameters().buffer_vectors()) vectors.push_back(vector);
  vectors.push_back(loss_sum_);
  return vectors;
}

StepResult Single::step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  const StepResult result =
      lanes_ == 1 ? step_of_one_lane(step, queue, observe) : step_of_many_lanes(step, queue, observe);
  if (result.examples > 0) replica_.optimizer().step();
  return result;
}

// The mean over the only lane is the mean over all: nothing to scale, to add or to divide.
StepResult Single::step_of_one_lane(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  const Batch batch = replica_.prepare(take(queue, step));
  if (batch.size() == 0) return {};
  replica_.parameters().zero_grads();
  const LossOutput output = replica_.run_lane(step, 0, batch, 1);
  observe(0, batch, output);
  return {batch.size(), sum_of_losses(output, batch)};
}

StepResult Single::step_of_many_lanes(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  StepResult result;
  int64_t lanes_with_data = 0;
  save_buffers();
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    const Batch batch = replica_.prepare(take(queue, step));
    if (batch.size() == 0) {
      sum_.skip();
      continue;
    }
    if (lanes_with_data++ > 0) restore_buffers();
    add_lane(step, lane, batch, observe);
    result.examples += batch.size();
  }
  sum_.finish();
  if (lanes_with_data == 0) return result;
  const torch::NoGradGuard no_grad;
  for (const auto& block : replica_.parameters().blocks())
    block.grads.div_(static_cast<double>(result.examples));
  for (const torch::Tensor& vector : replica_.parameters().buffer_vectors()) vector.div_(lanes_with_data);
  result.loss_sum = loss_sum_.clone();
  return result;
}

void Single::add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe) {
  replica_.parameters().zero_grads();
  const LossOutput output = replica_.run_lane(step, lane, batch, static_cast<double>(batch.size()));
  observe(lane, batch, output);
  const torch::NoGradGuard no_grad;
  loss_sum_.copy_(sum_of_losses(output, batch));
  sum_.add();
}

void Single::save_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) before_[i].copy_(buffers_[i]);
}

void Single::restore_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(before_[i]);
}

}  // namespace tutti
