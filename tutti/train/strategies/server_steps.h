#pragma once

#include <cstdint>
#include <string>

#include "tutti/train/strategy.h"

namespace tutti {

// The way in which the workers of parameter servers make their steps. See Strategy, whose methods these are.
class ServerSteps {
 public:
  virtual ~ServerSteps() = default;
  virtual StepRange begin(int64_t step, int64_t end, int64_t feed_begin) = 0;
  virtual StepResult make(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                          const LaneObserver& observe) = 0;
  virtual void settle() = 0;
  // Waits for pending requests and applies their results; returns the number of steps made.
  virtual int64_t finish(int64_t step) = 0;
  // The way in which gradients are added, for the report.
  virtual std::string reduce() const = 0;
};

}  // namespace tutti
