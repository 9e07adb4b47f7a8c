#pragma once

#include <chrono>
#include <cstdint>

#include <torch/cuda.h>

#include "tutti/train/hook.h"

namespace bench {

// Measures the speed over the steps after the warm-up. On a GPU, all their kernels have finished.
class StepClock {
 public:
  StepClock(int64_t warm_up, int64_t steps) : warm_up_(warm_up), steps_(steps) {}

  void step() {
    ++made_;
    if (made_ == warm_up_) begin_ = now();
    if (made_ == warm_up_ + steps_) end_ = now();
  }
  double steps_per_second() const {
    return static_cast<double>(steps_) / std::chrono::duration<double>(end_ - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  static Clock::time_point now() {
    if (torch::cuda::is_available()) torch::cuda::synchronize();
    return Clock::now();
  }

  const int64_t warm_up_;
  const int64_t steps_;
  int64_t made_ = 0;
  Clock::time_point begin_;
  Clock::time_point end_;
};

// Tells the clock the steps of a Trainer.
class ClockHook final : public tutti::Hook {
 public:
  explicit ClockHook(StepClock& clock) : clock_(clock) {}
  void after_step(tutti::Training&, const tutti::StepResult&) override { clock_.step(); }

 private:
  StepClock& clock_;
};

}  // namespace bench
