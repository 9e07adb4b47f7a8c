#include "tutti/train/hooks/summaries.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::hooks {
namespace {

using Clock = std::chrono::steady_clock;

bool due(const Run& run, int64_t every) { return every > 0 && (run.step % every == 0 || run.step == run.end_step); }

class Summaries final : public Hook {
 public:
  explicit Summaries(const SummariesOptions& options) : options_(options) {}

  void after_start(Run&) override { window_start_ = Clock::now(); }

  void after_step(Run& run, const StepResult& result) override {
    window_examples_ += result.examples;
    if (run.events == nullptr) return;
    if (due(run, options_.every)) write_scalars(run, result);
    if (due(run, options_.histograms_every)) {
      for (const auto& view : run.replica.parameters().trained()) run.events->histogram(view.name, run.step, view.tensor);
    }
  }

 private:
  void write_scalars(Run& run, const StepResult& result) {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - window_start_).count();
    if (result.examples > 0) run.events->scalar("loss", run.step, result.loss());
    run.events->scalar("learning_rate", run.step, run.replica.optimizer().learning_rate());
    run.events->scalar("examples_per_second", run.step, static_cast<double>(window_examples_) / seconds);
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

  void after_lane(Run& run, int64_t, const Batch& batch, const LossOutput& output) override {
    if (!due_after(run)) return;
    if (!output.prediction.defined()) {
      fail(ErrorKind::InvalidArgument,
           "metrics of the training batches need predictions: let the loss function return {{loss, prediction}}");
    }
    for (const auto& metric : list_) metric->update(output.prediction, batch);
  }

  void after_step(Run& run, const StepResult&) override {
    if (!due(run, every_)) return;
    std::string text;
    for (const auto& metric : list_) {
      if (const auto value = metric->value()) {
        text += fmt::format("  {} (batch) {:.4f}", metric->name(), *value);
        if (run.events != nullptr) run.events->scalar("batch_" + metric->name(), run.step, *value);
      }
      metric->reset();
    }
    run.context.log().info("step {}{}", run.step, text);
  }

 private:
  // Whether the step that is being made will be due when it is done.
  bool due_after(const Run& run) const {
    const int64_t done = run.step + 1;
    return every_ > 0 && (done % every_ == 0 || done == run.end_step);
  }

  const metrics::List list_;
  const int64_t every_;
};

}  // namespace

std::unique_ptr<Hook> summaries(const SummariesOptions& options) { return std::make_unique<Summaries>(options); }

std::unique_ptr<Hook> batch_metrics(metrics::List list, int64_t every) {
  return std::make_unique<BatchMetrics>(std::move(list), every);
}

}  // namespace tutti::hooks
