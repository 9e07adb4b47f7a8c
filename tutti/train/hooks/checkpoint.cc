#include "tutti/train/hooks/checkpoint.h"

#include <chrono>

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

class Checkpoint final : public Hook {
 public:
  explicit Checkpoint(Every every) : every_(every) {}

  void after_start(Training& training) override {
    last_time_ = Clock::now();
    last_step_ = training.step;
  }

  void after_step(Training& training, const StepResult&) override {
    const bool by_steps = every_.steps > 0 && training.step % every_.steps == 0;
    const bool by_time =
        every_.seconds > 0 && Clock::now() - last_time_ >= std::chrono::duration<double>(every_.seconds);
    if (by_steps || by_time) save(training);
  }

  void end(Training& training) override {
    if (training.step != last_step_) save(training);
  }

 private:
  void save(Training& training) {
    training.save_checkpoint();
    last_time_ = Clock::now();
    last_step_ = training.step;
  }

  const Every every_;
  Clock::time_point last_time_;
  int64_t last_step_ = 0;
};

}  // namespace

std::unique_ptr<Hook> checkpoint(Every every) { return std::make_unique<Checkpoint>(every); }

}  // namespace tutti::hooks
