#include "tutti/train/hooks/checkpoint.h"

namespace tutti::hooks {
namespace {

class Checkpoint final : public Hook {
 public:
  explicit Checkpoint(const Every& every) : due_(every) {}

  void after_start(Training& training) override {
    due_.restart();
    last_step_ = training.step;
  }

  void after_step(Training& training, const StepResult&) override {
    if (due_.at(training.step)) save(training);
  }

  void end(Training& training) override {
    if (training.step != last_step_) save(training);
  }

 private:
  void save(Training& training) {
    training.save_checkpoint();
    due_.restart();
    last_step_ = training.step;
  }

  Due due_;
  int64_t last_step_ = 0;
};

}  // namespace

std::unique_ptr<Hook> checkpoint(Every every) { return std::make_unique<Checkpoint>(every); }

}  // namespace tutti::hooks
