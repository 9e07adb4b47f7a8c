#include "tutti/train/strategies/synchronous.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

enum Number { kLoss, kExamples, kLanes, kNumbers };

// Those that are not of a floating type, such as a count of batches: nothing is added to them. They are those
// of the last lane, and the same after each, since every lane starts from what was there before the step.
std::vector<torch::Tensor> counters_of(const Parameters& parameters) {
  std::vector<torch::Tensor> counters;
  for (const auto& view : parameters.buffers()) {
    if (!view.tensor.is_floating_point()) counters.push_back(view.tensor);
  }
  return counters;
}

// Floating buffers are averaged over the lanes.
std::vector<torch::Tensor> buffers_of(const Parameters& parameters) {
  std::vector<torch::Tensor> buffers(parameters.buffer_vectors().begin(), parameters.buffer_vectors().end());
  for (const torch::Tensor& counter : counters_of(parameters)) buffers.push_back(counter);
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

Synchronous::Synchronous(Replica& replica, comm::Communicator& comm, int64_t lanes)
    : replica_(replica),
      comm_(comm),
      lanes_(lanes),
      buffers_(buffers_of(replica.parameters())),
      numbers_(torch::zeros({kNumbers},
                            torch::TensorOptions().dtype(torch::kFloat64).device(replica.options().device))),
      reducer_(comm, summed(), numbers_, lanes) {
  if (lanes_ == 1) return;
  for (const torch::Tensor& buffer : buffers_) before_.push_back(torch::empty_like(buffer));
}

TreeSum::Vectors Synchronous::summed() const {
  TreeSum::Vectors vectors;
  for (const auto& block : replica_.parameters().blocks()) vectors.push_back(block.grads);
  for (const torch::Tensor& vector : replica_.parameters().buffer_vectors()) vectors.push_back(vector);
  return vectors;
}

StepResult Synchronous::step(int64_t step, int64_t stop, data::BatchQueue& queue,
                             const LaneObserver& observe) {
  const bool alone = lanes_ == 1 && comm_.world() == 1;
  StepResult result =
      alone ? step_of_one_lane(step, queue, observe) : step_of_many_lanes(step, stop, queue, observe);
  if (alone) result.stop = stop;
  if (result.examples > 0) replica_.optimizer().step();
  return result;
}

// The mean over the only lane is the mean over all: nothing to scale, to add or to divide.
StepResult Synchronous::step_of_one_lane(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  const Batch batch = replica_.prepare(take(queue, step));
  if (batch.size() == 0) return {};
  replica_.parameters().zero_grads();
  const LossOutput output = replica_.run_lane(step, 0, batch, 1);
  observe(0, batch, output);
  return {batch.size(), sum_of_losses(output, batch)};
}

StepResult Synchronous::step_of_many_lanes(int64_t step, int64_t stop, data::BatchQueue& queue,
                                           const LaneObserver& observe) {
  bool first = true;
  save_buffers();
  for (int64_t lane = lanes().begin; lane < lanes().end; ++lane) {
    const Batch batch = replica_.prepare(take(queue, step));
    if (batch.size() == 0) {
      reducer_.skip();
      continue;
    }
    if (!first) restore_buffers();
    first = false;
    add_lane(step, lane, batch, observe);
  }
  const Reducer::Outcome outcome = reducer_.finish(step, stop);
  if (!outcome.any_data) return {.stop = outcome.stop};
  share_counters(outcome);
  const torch::NoGradGuard no_grad;
  const torch::Tensor numbers = numbers_.to(torch::kCPU);
  const double examples = numbers[kExamples].item<double>();
  for (const auto& block : replica_.parameters().blocks()) block.grads.div_(examples);
  for (const torch::Tensor& vector : replica_.parameters().buffer_vectors())
    vector.div_(numbers[kLanes].item<double>());
  return {static_cast<int64_t>(examples), numbers_[kLoss].clone(), outcome.stop};
}

void Synchronous::add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe) {
  replica_.parameters().zero_grads();
  const LossOutput output = replica_.run_lane(step, lane, batch, static_cast<double>(batch.size()));
  observe(lane, batch, output);
  const torch::NoGradGuard no_grad;
  numbers_[kLoss].copy_(sum_of_losses(output, batch));
  numbers_[kExamples].fill_(batch.size());
  numbers_[kLanes].fill_(1);
  reducer_.add();
}

// A worker that had no data has not counted.
void Synchronous::share_counters(const Reducer::Outcome& outcome) {
  if (outcome.data_everywhere) return;
  for (const torch::Tensor& counter : counters_of(replica_.parameters()))
    comm_.broadcast(counter, outcome.first_with_data, {.what = "a buffer"});
}

void Synchronous::save_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) before_[i].copy_(buffers_[i]);
}

void Synchronous::restore_buffers() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before_.size(); ++i) buffers_[i].copy_(before_[i]);
}

}  // namespace tutti
