#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/metrics/metric.h"
#include "tutti/store/event_file.h"
#include "tutti/train/hook.h"
#include "tutti/train/hooks.h"

namespace tutti {

// The result of an evaluation: values by name, and the points of curves, by the names of their metrics.
struct Evaluation {
  std::map<std::string, double> values;
  std::map<std::string, std::vector<metrics::CurvePoint>> curves;
};

// Writes the curves of those metrics that have one with evenly spaced thresholds, each under the prefix and
// the name of its metric.
void write_curves(store::EventWriter& events, const std::string& prefix, int64_t step,
                  const metrics::List& list);

// A hook that decides by one value of the evaluations.
class MonitorsValue {
 public:
  virtual ~MonitorsValue() = default;
  // The name of the value.
  virtual const std::string& monitored() const = 0;
};

// Evaluates a training at intervals: the validation of a fit or a Loop, and hooks::evaluation().
class EvaluationHook final : public Hook {
 public:
  // When to evaluate. Both 0: not at intervals.
  struct Interval {
    int64_t steps = 0;
    int64_t epochs = 0;  // if `steps` is 0
  };
  struct Measure {
    // Returns nullopt on a worker that takes no part in the evaluation.
    std::function<std::optional<Evaluation>(Training&)> call = {};
    // The names of the values; nullopt: only a function of the program knows them.
    std::optional<std::vector<std::string>> names = {};
    // Throws InvalidArgument if a metric reads a column that the feed does not have. Reads an example.
    std::function<void()> require_columns = {};
  };
  // Returns the function that counts these metrics over the feed. The metrics are reset for each evaluation.
  static Measure counting(data::Feed feed, metrics::List list, const hooks::EvaluationOptions& options);
  // Returns the function that calls one of the program's.
  static Measure calling(Training::Measure measure, std::vector<std::shared_ptr<torch::nn::Module>> nets);

  // The validation, which measures nothing until set() is called. Its name is "".
  EvaluationHook() = default;
  EvaluationHook(Measure measure, const Interval& interval, const hooks::EvaluationOptions& options);

  // Sets what to measure, and when. An empty function ends the validations. If both numbers are 0, validates
  // after every epoch or, if the length of an epoch is unknown, only at the end.
  void set_validation(Measure measure, const Interval& interval);

  // Reserves the folder of its event file, when it is added to a training. Throws InvalidArgument if another
  // evaluation or training of the program has it.
  void reserve(const Training& training);

  // Returns false if it measures nothing.
  bool is_set() const { return static_cast<bool>(measure_.call); }
  // Returns the names that its values have for hooks, as far as they are known before they are measured.
  std::optional<std::vector<std::string>> value_names() const;
  // Its name in messages, and before the values in the report: "validation" for "".
  std::string label() const { return options_.name.empty() ? "validation" : options_.name; }
  // The beginning of the names of its values, before the "_"; "" for the validation.
  const std::string& prefix() const { return options_.name; }
  // The facts that have to be the same on all workers, as they evaluate together.
  std::string plan() const;

  void begin(Training& training) override;
  void after_start(Training& training) override;
  void after_step(Training& training, const StepResult& result) override;
  void evaluate(Training& training) override;
  void end(Training& training) override;
  // Returns the values after the present step, by their names in the report and without telling anybody, if
  // it evaluates at the end and this process has not evaluated this step.
  // Has to be called where all workers call end().
  std::optional<std::map<std::string, double>> measure_unless_evaluated(Training& training) const;

  // The state is what the program's history has, so that a resumed run continues it.
  std::string name() const override;
  Snapshot state() const override;
  void restore(const Snapshot& saved) override;

 private:
  std::string named(const std::string& value) const;
  std::map<std::string, double> named(const Evaluation& result) const;
  std::optional<Evaluation> measured(Training& training) const;
  store::EventWriter* events_for(Training& training);
  void write_events(Training& training, const Evaluation& result);

  Measure measure_;
  Interval interval_;
  hooks::EvaluationOptions options_;
  int64_t last_ = 0;                                // the step of the last evaluation, or the first step
  int64_t measured_ = -1;                           // the step of the last evaluation of this process
  bool claimed_ = false;                            // options_.summary_dir
  std::shared_ptr<store::EventWriter> own_events_;  // in options_.summary_dir
  int64_t last_written_ = -1;                       // the step of the last of them
};

}  // namespace tutti
