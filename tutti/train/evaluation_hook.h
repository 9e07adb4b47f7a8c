#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/metrics/metric.h"
#include "tutti/store/event_file.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/hook.h"

namespace tutti {

// Writes the curves of those metrics that have one with evenly spaced thresholds, each under the prefix and
// the name of its metric.
void write_curves(store::EventWriter& events, const std::string& prefix, int64_t step,
                  const metrics::List& list);

// Makes an evaluation at its intervals: the validation of a fit or a Loop, and hooks::evaluation().
class EvaluationHook final : public Hook {
 public:
  // Measures nothing until set() is called.
  EvaluationHook() = default;

  // Sets what to measure, and when. Without a feed and a function nothing is measured. Throws InvalidArgument
  // if the options are not valid.
  void set(Evaluation evaluation);

  // Reserves the folder of its event file, for a training. Throws InvalidArgument if another evaluation or
  // training of the program has it.
  void reserve(const Training& training);

  // Returns false if it measures nothing.
  bool is_set() const { return evaluation_.feed || evaluation_.measure; }
  // Returns the names that its values have for hooks, as far as they are known before they are measured.
  std::optional<std::vector<std::string>> value_names() const;
  // Its name in messages, and before the values in the report: "validation" for "".
  std::string label() const { return evaluation_.name.empty() ? "validation" : evaluation_.name; }
  // The beginning of the names of its values, before the "_"; "" for the validation.
  const std::string& prefix() const { return evaluation_.name; }
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
  using Values = std::map<std::string, double>;
  std::string named(const std::string& value) const;
  Values named(const Values& values) const;
  std::optional<Values> measured(Training& training) const;
  void require_columns() const;
  store::EventWriter* events_for(Training& training);
  void write_events(Training& training, const Values& values);

  Evaluation evaluation_;                           // its metrics are this hook's own
  bool columns_exist_ = false;                      // as far as it is known
  int64_t last_ = 0;                                // the step of the last evaluation, or the first step
  int64_t measured_ = -1;                           // the step of the last evaluation of this process
  std::string claimed_;                             // the last summary_dir
  std::shared_ptr<store::EventWriter> own_events_;  // in the summary_dir
  int64_t last_written_ = -1;                       // the step of the last of them
};

}  // namespace tutti
