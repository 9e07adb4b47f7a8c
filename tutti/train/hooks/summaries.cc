#include <chrono>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/live_line.h"
#include "tutti/base/text.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/hooks.h"
#include "tutti/train/training_run.h"

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLiveEvery{250};
constexpr std::chrono::seconds kPlainEvery{10};

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  const int64_t hours = whole / 3600;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, whole / 60 % 60, whole % 60)
                   : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

class Progress final : public Hook {
 public:
  void after_start(Training&) override { window_start_ = Clock::now(); }

  void after_step(Training& training, const StepResult& result) override {
    window_examples_ += result.examples;
    ++window_steps_;
    const auto now = Clock::now();
    const bool due = now - window_start_ >= (line_of(training).is_shown() ? Clock::duration(kLiveEvery)
                                                                          : Clock::duration(kPlainEvery));
    if ((!due && training.step != training.end_step) || !training.group.is_chief()) return;
    show(training, result, std::chrono::duration<double>(now - window_start_).count());
    window_start_ = now;
    window_examples_ = 0;
    window_steps_ = 0;
  }

  void end(Training& training) override { line_of(training).leave(); }
  void on_error(Training& training, const std::exception&) noexcept override { line_of(training).leave(); }

 private:
  void show(const Training& training, const StepResult& result, double seconds) {
    LiveLine& line = line_of(training);
    const std::string loss = result.has_loss() ? fmt::format("{:.4f}", result.loss()) : "none";
    std::string bar;
    std::string of_how_many;
    std::string left;
    if (training.end_step != Training::kEndless) {
      const double steps_left = static_cast<double>(training.end_step - training.step);
      if (line.is_shown())
        bar = line.bar(static_cast<double>(training.step) / static_cast<double>(training.end_step)) + " ";
      of_how_many = "/" + grouped(training.end_step);
      left = fmt::format("  {} left", duration(steps_left * seconds / static_cast<double>(window_steps_)));
    }
    const std::string step = fmt::format("{}step {}{}", bar, grouped(training.step), of_how_many);
    const std::string rest =
        fmt::format("  loss {}  {} examples/s{}", loss,
                    grouped(static_cast<int64_t>(static_cast<double>(window_examples_) / seconds)), left);
    if (!line.is_shown())
      training.context.log().info("{}{}", step, rest);
    else if (training.context.log().enabled(LogLevel::Info))
      line.show(step, rest + workers(training.group.world));
  }

  static std::string workers(int count) { return count > 1 ? fmt::format("  {} workers", count) : ""; }

  // Another one if this worker becomes the chief.
  static LiveLine& line_of(const Training& training) { return training.run.session().line(); }

  Clock::time_point window_start_;
  int64_t window_examples_ = 0;
  int64_t window_steps_ = 0;
};

class Summaries final : public Hook {
 public:
  explicit Summaries(const SummariesOptions& options) : options_(options) {
    if (options.every < 0 || options.histograms_every < 0)
      fail(ErrorKind::InvalidArgument,
           "summaries every {} steps, histograms every {}: .every and .histograms_every must be 0 or more",
           options.every, options.histograms_every);
  }

  void after_start(Training&) override { window_start_ = Clock::now(); }

  void after_step(Training& training, const StepResult& result) override {
    window_examples_ += result.examples;
    if (training.events == nullptr) return;
    if (training.due(options_.every)) write_scalars(training, result);
    if (training.due(options_.histograms_every)) {
      for (const SessionPart& part : training.parts) {
        const std::string prefix = part.name.empty() ? "" : part.name + ".";
        for (const auto& view : part.parameters.trained())
          training.events->histogram(prefix + view.name, training.step, view.tensor);
      }
    }
  }

 private:
  void write_scalars(Training& training, const StepResult& result) {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - window_start_).count();
    if (result.has_loss()) training.events->scalar("loss", training.step, result.loss());
    training.events->scalar("learning_rate", training.step, training.optimizer.learning_rate());
    training.events->scalar("examples_per_second", training.step,
                            static_cast<double>(window_examples_) / seconds);
    window_start_ = now;
    window_examples_ = 0;
  }

  const SummariesOptions options_;
  Clock::time_point window_start_;
  int64_t window_examples_ = 0;
};

class BatchMetrics final : public Hook {
 public:
  BatchMetrics(metrics::List list, const BatchMetricsOptions& options)
      : list_(std::move(list)), options_(options) {
    metrics::require_distinct_names(list_);
    if (options.every.value_or(0) < 0 || options.window < 1)
      fail(ErrorKind::InvalidArgument,
           "batch metrics every {} steps, of the last {} steps: .every must be 0 or more, .window 1 or more",
           options.every.value_or(0), options.window);
  }

  void begin(Training& training) override {
    every_ = options_.every.value_or(training.context.config().output.summary_every);
  }

  // Forgets the lanes of a step that is begun again.
  void before_step(Training& /*training*/) override {
    for (const auto& metric : list_) metric->reset();
  }

  void after_lane(Training& training, int64_t, const Batch& batch, const LossOutput& output) override {
    if (!counts(training, training.step + 1)) return;
    if (!output.prediction.defined()) {
      fail(ErrorKind::InvalidArgument,
           "metrics of the training batches need predictions: let the loss function return {{loss, "
           "prediction}}");
    }
    for (const auto& metric : list_) metric->update(output.prediction, batch);
  }

  // If workers make steps of their own, the worker that made the step shows its own batches. If the chief
  // evaluates alone, as with parameter servers, it shows the counts of its own lanes only: workers come and
  // go, and so have not all counted the same steps.
  void after_step(Training& training, const StepResult&) override {
    const bool due = training.in_step ? training.due(every_) : every_ > 0 && training.step % every_ == 0;
    // The first batch was computed with the weights from before any step, so it is shown as step 0.
    const bool is_first = every_ > 0 && training.step == 1;
    if (counts(training, training.step)) remember(training.step);
    if (due || is_first) {
      for (const Counted& counted : window_) metrics::merge(list_, counted.counters);
      if (training.in_step) training.merge(list_);
    }
    if (is_first) show(training, 0);
    if (due) show(training, training.step);
    for (const auto& metric : list_) metric->reset();
  }

 private:
  // What this worker has counted in a step.
  struct Counted {
    int64_t step;
    std::vector<double> counters;
  };

  // Moves the counts of this step to the window. A run that was set back makes steps again.
  void remember(int64_t step) {
    std::erase_if(window_, [&](const Counted& counted) {
      return counted.step <= step - options_.window || counted.step >= step;
    });
    window_.push_back({step, metrics::counters_of(list_)});
    for (const auto& metric : list_) metric->reset();
  }

  void show(Training& training, int64_t step) const {
    const bool is_window = options_.window > 1;
    const std::string of = !is_window            ? "batch"
                           : window_.size() == 1 ? "last step"
                                                 : fmt::format("last {} steps", window_.size());
    std::string text;
    for (const auto& metric : list_) {
      const auto value = metric->value();
      text += fmt::format("  {} ({}) {}", metric->name(), of,
                          value ? fmt::format("{:.4f}", *value) : fmt::format("none ({})", metric->reason()));
      if (!value || training.events == nullptr) continue;
      training.events->scalar((is_window ? "window_" : "batch_") + metric->name(), step, *value);
    }
    if (training.group.is_chief() || !training.in_step) training.context.log().info("step {}{}", step, text);
  }

  // Returns true if the batches of this step may be shown, after the step or after a later one.
  bool counts(const Training& training, int64_t step) const {
    if (every_ == 0) return false;
    const int64_t steps_to_due = (every_ - step % every_) % every_;
    return !training.in_step || step == 1 || steps_to_due < options_.window ||
           training.end_step - step < options_.window;
  }

  const metrics::List list_;
  const BatchMetricsOptions options_;
  int64_t every_ = 0;
  std::deque<Counted> window_;  // of the last steps that count, by step
};

}  // namespace

std::unique_ptr<Hook> progress() { return std::make_unique<Progress>(); }

std::unique_ptr<Hook> summaries(const SummariesOptions& options) {
  return std::make_unique<Summaries>(options);
}

std::unique_ptr<Hook> batch_metrics(metrics::List list, const BatchMetricsOptions& options) {
  return std::make_unique<BatchMetrics>(std::move(list), options);
}

}  // namespace tutti::hooks
