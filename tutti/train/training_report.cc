#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/text.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/training_run.h"

// The part of TrainingRun that tells what a training has reached: the values of its evaluations, its events
// and its report. Also most methods of Training, by which hooks call it.
namespace tutti {
namespace {

// The name of a value of an evaluation in the report; the validation is called "".
std::string reported_name(const std::string& evaluation, const std::string& value) {
  return evaluation.empty() ? "validation_" + value : value;
}

}  // namespace

std::vector<const EvaluationHook*> TrainingRun::evaluations() const {
  std::vector<const EvaluationHook*> all;
  for (const EvaluationHook* evaluation : evaluations_) {
    if (evaluation->is_set()) all.push_back(evaluation);
  }
  return all;
}

void TrainingRun::note_evaluations() {
  std::set<std::string> labels;
  for (const EvaluationHook* evaluation : evaluations()) {
    if (!labels.insert(evaluation->label()).second)
      tutti::fail(
          ErrorKind::InvalidArgument,
          "two evaluations of this training are called '{}', so the values of one would replace those "
          "of the other: give one a name (Evaluation::name)",
          evaluation->label());
  }
  training_.reported.clear();
  for (const auto& hook : hooks_) {
    for (const std::string& name : hook->reported()) training_.reported.insert(name);
  }
  require_monitored_values();
  training_.evaluations = static_cast<int>(labels.size());
  training_.knows_values = !known_values().empty();
}

// Returns the names of the values of all evaluations and hooks; an empty vector if the names of one
// evaluation are not known before it is made.
std::vector<std::string> TrainingRun::known_values() const {
  std::vector<std::string> known;
  for (const EvaluationHook* evaluation : evaluations()) {
    const auto names = evaluation->value_names();
    if (!names) return {};
    known.insert(known.end(), names->begin(), names->end());
  }
  if (!known.empty()) known.insert(known.end(), training_.reported.begin(), training_.reported.end());
  return known;
}

// If an evaluation calls a function, which may return any values, the names are not known yet. A name that
// does not exist is then found when the first values are there.
void TrainingRun::require_monitored_values() const {
  const std::vector<std::string> known = known_values();
  if (known.empty()) return;
  for (const auto& hook : hooks_) {
    const std::string name = hook->monitored();
    if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    tutti::fail(ErrorKind::InvalidArgument,
                "{} monitors '{}', but the evaluations of this training have only {}{} (a hook that tells it "
                "says so by Hook::reported())",
                hook->name(), name, fmt::join(known, ", "), did_you_mean(name, known));
  }
}

// Adds the values of an evaluation to the report and the log.
void TrainingRun::note_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  std::string text;
  const size_t prefix = name.empty() ? 0 : name.size() + 1;  // the length of "NAME_" before each value's name
  for (const auto& [of_value, value] : values) {
    text += fmt::format("  {} {:.4f}", std::string_view(of_value).substr(prefix), value);
    report_.metrics[reported_name(name, of_value)] = value;
  }
  if (training_.writes())
    context_.log().info("{}{} after step {}:{}", name.empty() ? "validation" : name,
                        training_.average != nullptr ? " of the moving average" : "", training_.step, text);
}

// Makes the evaluations that this process has not made after this step, for the report only: hooks and
// history are not told.
void TrainingRun::measure_rest() {
  for (const EvaluationHook* evaluation : evaluations()) {
    if (const auto values = evaluation->measure_unless_evaluated(training_))
      note_evaluation(evaluation->prefix(), *values);
  }
}

void TrainingRun::report_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  note_evaluation(name, values);
  for (const auto& [of_value, value] : values) evaluated_[reported_name(name, of_value)] = value;
  training_.evaluation = name;
  for_each_hook([&](Hook& hook) { hook.after_validation(training_, values); });
}

// Merges the counts of all workers, on each of them. If they do not evaluate together, the chief has counted
// everything.
void TrainingRun::merge(const metrics::List& list) {
  if (strategy_.facts().evaluation_parts > 1) return tutti::merge(*strategy_.group().connected(), list);
  if (list.empty() || strategy_.is_alone()) return;
  std::string what = "metrics";
  for (const auto& metric : list) what += " " + metric->name();
  const Json counters = strategy_.share(what, [&]() -> Json { return metrics::counters_of(list); });
  for (const auto& metric : list) metric->reset();
  metrics::merge(list, counters.get<std::vector<double>>());
}

void Training::save_checkpoint() { run.save(); }

void Training::merge(const metrics::List& list) {
  if (run.strategy_.facts().evaluation_parts > 1) run.merge(list);
}

Snapshot Training::rows() { return run.strategy_.rows(); }

std::optional<std::map<std::string, double>> Training::evaluate(const Evaluation& one) {
  return run.evaluate(one);
}

void Training::report_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  run.report_evaluation(name, values);
}

void Training::report_validation(const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) {
    if (events != nullptr) events->scalar("validation_" + name, step, value);
  }
  report_evaluation("", values);
}

// If no step was made since the run was resumed, the loss of the checkpoint remains.
void TrainingRun::note_loss() {
  if (last_step_.has_loss())
    progress_.loss = last_step_.loss();
  else if (last_step_.examples > 0)
    progress_.loss.reset();
}

store::Events TrainingRun::events() const {
  const std::string& folder = session_.folder();
  return folder.empty() ? store::Events() : store::Events(context_.event_stream(folder));
}

void TrainingRun::write_report() {
  const std::chrono::duration<double> lasted =
      is_running_ ? std::chrono::steady_clock::now() - begin_ : std::chrono::duration<double>(0);
  const auto examples = static_cast<double>(progress_.examples - examples_before_);
  report_.seconds += lasted.count();
  report_.examples_per_second = lasted.count() > 0 ? examples / lasted.count() : 0;
  note_loss();
  report_.history = to_json(history_->history());
  session_.fill(report_, progress_);
  strategy_.fill(report_);
  session_.write(report_);
}

}  // namespace tutti
