#include "tutti/train/hooks/summaries.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

class Summaries final : public Hook {
 public:
  explicit Summaries(const SummariesOptions& options) : options_(options) {}

  void after_start(Training&) override { window_start_ = Clock::now(); }

  void after_step(Training& training, const StepResult& result) override {
    window_examples_ += result.examples;
    if (training.events == nullptr) return;
    if (training.due(options_.every)) write_scalars(training, result);
    if (training.due(options_.histograms_every)) {
      for (const auto& view : training.parameters.trained())
        training.events->histogram(view.name, training.step, view.tensor);
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
  BatchMetrics(metrics::List list, int64_t every) : list_(std::move(list)), every_(every) {}

  void after_lane(Training& training, int64_t, const Batch& batch, const LossOutput& output) override {
    if (!due_after(training)) return;
    if (!output.prediction.defined()) {
      fail(ErrorKind::InvalidArgument,
           "metrics of the training batches need predictions: let the loss function return {{loss, "
           "prediction}}");
    }
    for (const auto& metric : list_) metric->update(output.prediction, batch);
  }

  // Where workers make steps of their own, the one that has made the step shows its own batch. Where the
  // chief evaluates alone, as with parameter servers, it shows what its own lanes have counted: workers that
  // come and go have not all counted the same steps.
  void after_step(Training& training, const StepResult&) override {
    const bool due = training.in_step ? training.due(every_) : every_ > 0 && training.step % every_ == 0;
    const bool merging = training.in_step && training.merge;
    std::string text;
    for (const auto& metric : list_) {
      if (due) {
        if (merging) training.merge(*metric);
        text += show(training, *metric);
      }
      metric->reset();
    }
    if (due && (training.context.is_chief() || !training.in_step))
      training.context.log().info("step {}{}", training.step, text);
  }

 private:
  static std::string show(Training& training, const metrics::Metric& metric) {
    const auto value = metric.value();
    if (!value) return "";
    if (training.events != nullptr) training.events->scalar("batch_" + metric.name(), training.step, *value);
    return fmt::format("  {} (batch) {:.4f}", metric.name(), *value);
  }

  // Whether the step that is being made may be due when it is done.
  bool due_after(const Training& training) const {
    const int64_t done = training.step + 1;
    return every_ > 0 && (!training.in_step || done % every_ == 0 || done == training.end_step);
  }

  const metrics::List list_;
  const int64_t every_;
};

}  // namespace

std::unique_ptr<Hook> summaries(const SummariesOptions& options) {
  return std::make_unique<Summaries>(options);
}

std::unique_ptr<Hook> batch_metrics(metrics::List list, int64_t every) {
  return std::make_unique<BatchMetrics>(std::move(list), every);
}

}  // namespace tutti::hooks
