#include "tutti/train/hooks/checkpoint.h"

namespace tutti::hooks {
namespace {

class Checkpoint final : public Hook {
 public:
  explicit Checkpoint(const Every& every) : due_(every) {}

  void after_start(Training& training) override {
    due_.restart(training.step);
    last_step_ = training.went_on ? -1 : training.step;
  }

  void before_step(Training& training) override {
    if (due_.at(training.step + 1)) training.wishes.save = true;
  }

  void after_step(Training& training, const StepResult& result) override {
    if (result.wishes.save) save(training);
  }

  // A worker that makes steps of its own saved its last step before it knew that this was the last.
  void end(Training& training) override {
    const bool stopped_by_itself = !training.in_step && training.stop_reason.has_value();
    if (training.step != last_step_ || stopped_by_itself) save(training);
  }

 private:
  void save(Training& training) {
    training.save_checkpoint();
    due_.restart(training.step);
    last_step_ = training.step;
  }

  Due due_;
  int64_t last_step_ = 0;  // the last step that was saved; -1: unknown
};

}  // namespace

std::unique_ptr<Hook> checkpoint(Every every) { return std::make_unique<Checkpoint>(every); }

}  // namespace tutti::hooks
