#pragma once

#include <string>

#include "tutti/comm/communicator.h"
#include "tutti/params/gradient_mean.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

struct SynchronousOptions {
  double clip_norm = 0;  // the maximum norm of the mean gradient; 0: no limit
  ReducerOptions reducer = {};
};

// Every worker computes its lanes, one after the other, sums the results together with all other workers, and
// makes the same update: "allreduce", or "single" if there is one worker.
class Synchronous final : public Strategy {
 public:
  // Replica and communicator must outlive the strategy.
  Synchronous(Replica& replica, comm::Communicator& comm, int64_t lanes,
              const SynchronousOptions& options = {});

  std::string name() const override { return comm_.world() == 1 ? "single" : "allreduce"; }
  LaneRange lanes() const override { return mean_.lanes(); }
  bool in_step() const override { return true; }
  StepRange data_steps(int64_t step, int64_t end) const override { return {step, end}; }
  void ends_at(int64_t) override {}
  int64_t finish(int64_t step) override { return step; }
  std::string reduce() const override { return mean_.name(); }
  GradientMean& mean() { return mean_; }
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;

 private:
  Batch prepare(const Batch& batch, int64_t step) const;
  GradientMean::Result add_up(int64_t step);
  void add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe);

  Replica& replica_;
  comm::Communicator& comm_;
  const SynchronousOptions options_;
  GradientMean mean_;
};

}  // namespace tutti
