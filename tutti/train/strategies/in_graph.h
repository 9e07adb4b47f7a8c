#pragma once

#include <string>

#include "tutti/train/passive/master.h"
#include "tutti/train/strategy.h"

namespace tutti {

// The master takes the batches of all lanes, lets its passive workers compute what they give, and makes the
// update itself: the same bits as those of one worker alone.
class InGraph final : public Strategy {
 public:
  // The master, which has begun, outlives the strategy.
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

  // What made the last step the last, if anything did.
  int64_t stop() const { return stop_; }

 private:
  Replica& replica_;
  Master& master_;
  const int64_t lanes_;
  const double clip_norm_;
  int64_t stop_ = 0;
};

}  // namespace tutti
