#pragma once

#include <string>

#include "tutti/train/passive/master.h"
#include "tutti/train/strategy.h"

namespace tutti {

// The master takes the batches of all lanes, lets its passive workers compute losses and gradients, and makes
// the update itself. The result has the same bits as that of a single worker.
class InGraph final : public Strategy {
 public:
  // The master must have begun, and must outlive the strategy.
  InGraph(Replica& replica, Master& master, int64_t lanes, double clip_norm)
      : replica_(replica), master_(master), lanes_(lanes), clip_norm_(clip_norm) {}

  std::string name() const override { return "in-graph"; }
  LaneRange lanes() const override { return {0, lanes_}; }
  bool in_step() const override { return true; }
  StepRange data_steps(int64_t step, int64_t end) const override { return {step, end}; }
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void ends_at(int64_t) override {}
  int64_t finish(int64_t step) override { return step; }
  std::string reduce() const override { return "tree"; }

  // The requests of all tasks in the last step.
  const Wishes& wishes() const { return wishes_; }

 private:
  Replica& replica_;
  Master& master_;
  const int64_t lanes_;
  const double clip_norm_;
  Wishes wishes_;
};

}  // namespace tutti
