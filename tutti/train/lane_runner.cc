#include "tutti/train/lane_runner.h"

#include <utility>

#include <torch/utils.h>

namespace tutti {
namespace {

std::vector<torch::Tensor> summed(std::vector<torch::Tensor> gradients, const LaneVectors& vectors) {
  gradients.insert(gradients.end(), vectors.buffers().begin(), vectors.buffers().end());
  gradients.push_back(vectors.numbers());
  return gradients;
}

}  // namespace

LaneRunner::LaneRunner(Replica& replica, LaneVectors& vectors, std::vector<torch::Tensor> gradients,
                       const Place& place)
    : replica_(replica),
      vectors_(vectors),
      place_(place),
      sum_(summed(std::move(gradients), vectors), place.leaves, place.of) {}

void LaneRunner::begin_step(int64_t step) {
  sum_.reset();
  vectors_.begin_step();
  step_ = step;
  lane_ = place_.lanes.begin;
}

void LaneRunner::run(const Batch& batch, const LaneObserver& observe) {
  const int64_t lane = lane_++;
  if (batch.size() == 0) {
    sum_.skip();
    return;
  }
  vectors_.begin_lane();
  const LossOutput output =
      replica_.run_lane(step_, lane, batch, vectors_.weight(batch.size()),
                        [&](const torch::Tensor& loss) { vectors_.count(loss, batch.size()); });
  observe(lane, batch, output);
  vectors_.collect();
  const torch::NoGradGuard no_grad;
  sum_.add();
}

std::vector<TreeSum::Subtree> LaneRunner::finish() {
  const torch::NoGradGuard no_grad;
  return sum_.finish();
}

std::vector<TreeSum::Subtree> LaneRunner::run_step(int64_t step, data::BatchQueue& queue,
                                                   const LaneObserver& observe) {
  begin_step(step);
  for (int64_t lane = place_.lanes.begin; lane < place_.lanes.end; ++lane)
    run(replica_.prepare(take(queue, step)), observe);
  return finish();
}

std::vector<torch::Tensor> gradients_of(const Parameters& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const Stretch& block : parameters.blocks()) gradients.push_back(block.grads);
  return gradients;
}

}  // namespace tutti
