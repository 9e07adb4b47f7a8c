#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/train/hooks.h"
#include "tutti/train/training_run.h"

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Checkpoint final : public Hook {
 public:
  explicit Checkpoint(const Every& every)
      : automatic_(every.automatic), due_(automatic_ ? Every{.steps = 1} : every) {}

  void begin(Training&) override {
    begin_ = Clock::now();
    saving_ = 0;
  }

  void after_start(Training& training) override {
    if (cost_) choose_interval(training);  // a failure may be the reason of this start
    due_.restart(training.step);
    last_step_ = training.went_on ? -1 : training.step;
  }

  // Only the chief knows the cost and the failures. A worker that becomes the chief saves at once.
  void before_step(Training& training) override {
    if (automatic_ && !training.group.is_chief()) return;
    if (due_.at(training.step + 1)) training.wishes.save = true;
  }

  void after_step(Training& training, const StepResult& result) override {
    if (!result.wishes.save) return;
    const auto begin = Clock::now();
    save(training);
    if (!automatic_ || !training.group.is_chief()) return;
    const double seconds = seconds_since(begin);
    saving_ += seconds;
    cost_ = cost_ ? (*cost_ + seconds) / 2 : seconds;
    choose_interval(training);
  }

  // A worker that makes steps of its own saved its last step before it knew that this was the last.
  void end(Training& training) override {
    if (cost_) choose_interval(training);  // for the report
    const bool stopped_by_itself = !training.in_step && training.stop_reason.has_value();
    if (training.step != last_step_ || stopped_by_itself || training.save_at_end) save(training);
  }

 private:
  void save(Training& training) {
    training.save_checkpoint();
    due_.restart(training.step);
    last_step_ = training.step;
  }

  // Tells the log if the interval has changed by half, and the report.
  void choose_interval(Training& training) {
    const RunState& run = training.run.session().run_state();
    const double between_failures = expected_between_failures(run.failures, run.trained());
    const double interval = checkpoint_interval(*cost_, between_failures);
    due_ = Due({.seconds = interval});
    training.run.report().checkpoints = {{"interval", interval},
                                         {"cost", *cost_},
                                         {"overhead", saving_ / seconds_since(begin_)},
                                         {"failures", run.failures},
                                         {"between_failures", between_failures}};
    constexpr double kMuch = 1.5;
    if (interval < told_ * kMuch && interval > told_ / kMuch) return;
    told_ = interval;
    constexpr double kHour = 3600;
    training.context.log().info(
        "a checkpoint every {:.0f} s: the training stands still for {:.2g} s for one, and a failure is "
        "expected every {:.2g} hours, after {} in {:.2g} hours",
        interval, *cost_, between_failures / kHour, run.failures, run.trained() / kHour);
  }

  const bool automatic_;
  Due due_;
  int64_t last_step_ = 0;       // the last step that was saved; -1: unknown
  Clock::time_point begin_;     // of the training
  double saving_ = 0;           // seconds since then for which the training stood still
  std::optional<double> cost_;  // seconds of one, later ones counting more; only on the chief
  double told_ = 0;             // the interval in the log
};

}  // namespace

std::unique_ptr<Hook> checkpoint(Every every) {
  if (every.steps < 0 || !(every.seconds >= 0))
    fail(ErrorKind::InvalidArgument,
         "a checkpoint every {} steps, {:g} seconds: .steps and .seconds must be 0 or more", every.steps,
         every.seconds);
  return std::make_unique<Checkpoint>(every);
}

double expected_between_failures(int64_t failures, double seconds) {
  constexpr double kDay = 86400;
  return (kDay + seconds) / static_cast<double>(1 + failures);
}

double checkpoint_interval(double cost, double between_failures) {
  constexpr double kLeast = 1;
  constexpr double kMostOverhead = 0.035;
  return std::max({kLeast, std::sqrt(2 * cost * between_failures), cost / kMostOverhead});
}

}  // namespace tutti::hooks
