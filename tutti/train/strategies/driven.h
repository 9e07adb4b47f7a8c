#pragma once

#include <optional>
#include <string>

#include "tutti/train/passive/lane_server.h"
#include "tutti/train/passive/line.h"
#include "tutti/train/strategy.h"

namespace tutti {

// The steps of a passive worker that has the model itself: answers the master's requests until the master has
// made the last step.
class DrivenSteps final : public Strategy {
 public:
  // Both must outlive the strategy.
  DrivenSteps(passive::Line& line, passive::LaneServer& server) : line_(line), server_(server) {}

  std::string name() const override { return "in-graph"; }
  // The batches come from the master, so this worker reads none.
  LaneRange lanes() const override { return {0, 0}; }
  bool in_step() const override { return true; }
  StepRange data_steps(int64_t step, int64_t) const override { return {step, step}; }
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void ends_at(int64_t) override {}
  int64_t finish(int64_t step) override { return step; }
  std::string reduce() const override { return "tree"; }

 private:
  passive::Line& line_;
  passive::LaneServer& server_;
};

}  // namespace tutti
