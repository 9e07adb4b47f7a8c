#pragma once

#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/params/reducer.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

// Every worker does its lanes, one after the other, adds up what they give together with all others, and
// makes the same update as they: "allreduce", or "single" where there is one worker.
class Synchronous final : public Strategy {
 public:
  // Replica and communicator outlive the strategy.
  Synchronous(Replica& replica, comm::Communicator& comm, int64_t lanes);

  std::string name() const override { return comm_.world() == 1 ? "single" : "allreduce"; }
  LaneRange lanes() const override { return reducer_.block(); }
  StepResult step(int64_t step, int64_t stop, data::BatchQueue& queue, const LaneObserver& observe) override;

 private:
  StepResult step_of_one_lane(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);
  StepResult step_of_many_lanes(int64_t step, int64_t stop, data::BatchQueue& queue,
                                const LaneObserver& observe);
  void add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe);
  TreeSum::Vectors summed() const;
  void share_counters(const Reducer::Outcome& outcome);
  void save_buffers();
  void restore_buffers();

  Replica& replica_;
  comm::Communicator& comm_;
  const int64_t lanes_;
  const std::vector<torch::Tensor> buffers_;  // all of the module's, the floating ones as vectors
  std::vector<torch::Tensor> before_;         // what every lane starts from
  torch::Tensor numbers_;                     // of a step: the sum of losses, examples, lanes with data
  Reducer reducer_;
};

}  // namespace tutti
