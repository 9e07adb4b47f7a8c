#pragma once

#include <string>
#include <vector>

#include "tutti/params/tree_sum.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

// One process does all lanes, one after the other, and adds up what they give along the tree.
class Single final : public Strategy {
 public:
  // The replica outlives the strategy.
  Single(Replica& replica, int64_t lanes);

  std::string name() const override { return "single"; }
  StepResult step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) override;

 private:
  StepResult step_of_one_lane(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);
  StepResult step_of_many_lanes(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);
  void add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe);
  TreeSum::Vectors summed();
  void save_buffers();
  void restore_buffers();

  Replica& replica_;
  const int64_t lanes_;
  const std::vector<torch::Tensor> buffers_;  // all of the module's, the floating ones as vectors
  std::vector<torch::Tensor> before_;         // what every lane starts from
  torch::Tensor loss_sum_;                    // float64, so that it can follow the same tree
  TreeSum sum_;
};

}  // namespace tutti
