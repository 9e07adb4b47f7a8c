#include "tutti/train/evaluation_hook.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/metrics/inputs.h"
#include "tutti/params/random_scope.h"
#include "tutti/train/hooks.h"

namespace tutti {
namespace {

void write_curve(store::EventWriter& events, const std::string& tag, int64_t step,
                 const std::vector<metrics::CurvePoint>& points) {
  store::CurveCounts counts;
  for (const metrics::CurvePoint& point : points) {
    counts.true_positives.push_back(point.true_positives);
    counts.false_positives.push_back(point.false_positives);
    counts.true_negatives.push_back(point.true_negatives);
    counts.false_negatives.push_back(point.false_negatives);
  }
  events.pr_curve(tag, step, counts);
}

// The name becomes part of tags, and of the name of a part of the checkpoint.
void require_evaluation_name(const std::string& name) {
  const bool is_valid = name.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyz"
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "0123456789_-") == std::string::npos;
  if (!is_valid)
    fail(ErrorKind::InvalidArgument, "'{}' is not a valid name for an evaluation: use letters and digits",
         name);
}

}  // namespace

void write_curves(store::EventWriter& events, const std::string& prefix, int64_t step,
                  const metrics::List& list) {
  for (const auto& metric : list) {
    if (metric->has_uneven_thresholds()) continue;  // TensorBoard would show other ones
    if (const auto points = metric->curve(); !points.empty())
      write_curve(events, prefix + metric->name(), step, points);
  }
}

// The metrics are the hook's own, since a program may use one object for several purposes.
void EvaluationHook::set(Evaluation evaluation) {
  require_evaluation_name(evaluation.name);
  metrics::require_distinct_names(evaluation.metrics);
  if (evaluation.every_steps.value_or(0) < 0 || evaluation.every_epochs < 0)
    fail(ErrorKind::InvalidArgument,
         "an evaluation every {} steps, {} epochs: .every_steps and .every_epochs must be 0 or more",
         evaluation.every_steps.value_or(0), evaluation.every_epochs);
  if (evaluation.measure && (evaluation.feed || !evaluation.metrics.empty()))
    fail(ErrorKind::InvalidArgument,
         "an evaluation of a feed and by a function: set either Evaluation::feed or Evaluation::measure");
  for (auto& metric : evaluation.metrics) metric = metric->clone();
  if (evaluation.summary_dir != evaluation_.summary_dir) {
    own_events_.reset();
    last_written_ = -1;
  }
  columns_exist_ = false;
  evaluation_ = std::move(evaluation);
}

std::string EvaluationHook::plan() const {
  return fmt::format("{} every {} steps, {} epochs, {} at the start, {} at the end", label(),
                     evaluation_.every_steps.value_or(0), evaluation_.every_epochs,
                     evaluation_.at_start ? "and" : "not", evaluation_.at_end ? "and" : "not");
}

void EvaluationHook::begin(Training& training) {
  last_ = training.step;
  if (training.writes() && !std::exchange(columns_exist_, true)) require_columns();
}

// Looks at the first example, which the chief can read if each worker has its own part of the feed.
void EvaluationHook::require_columns() const {
  if (!evaluation_.feed || evaluation_.feed->size() == 0 || evaluation_.metrics.empty()) return;
  const std::lock_guard lock(generator_mutex());
  const RandomScope own_numbers(torch::kCPU);
  const Batch batch = evaluation_.feed->read(std::vector<int64_t>{0});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.tensors()) names.push_back(name);
  metrics::require_columns(evaluation_.metrics, names);
}

void EvaluationHook::reserve(const Training& training) {
  const std::string& folder = evaluation_.summary_dir;
  if (folder.empty() || !training.writes() || std::exchange(claimed_, folder) == folder) return;
  if (!training.context.claim_folder(folder))
    fail(ErrorKind::InvalidArgument,
         "{}: another evaluation or a training of this program writes to {}: give each evaluation a "
         ".summary_dir of its own",
         label(), folder);
}

// It is unknown whether a step that was made without this worker was evaluated.
void EvaluationHook::after_start(Training& training) {
  if (training.went_on) last_ = -1;
  const bool begins = training.step == 0 && !training.went_on && !training.have_begun;
  if (evaluation_.at_start && begins) evaluate(training);
}

void EvaluationHook::after_step(Training& training, const StepResult& result) {
  const int64_t steps = evaluation_.every_steps.value_or(0);
  const int64_t every = steps > 0 ? steps : evaluation_.every_epochs * training.steps_per_epoch;
  // The evaluation of the end is made here where possible, so that a checkpoint of the last step contains it.
  const bool is_last = training.in_step && (result.wishes.stop || training.step >= training.end_step);
  if (training.passed(every) || (evaluation_.at_end && (is_last || training.due(every)))) evaluate(training);
}

void EvaluationHook::end(Training& training) {
  if (evaluation_.at_end && last_ != training.step && !training.interrupted) evaluate(training);
}

std::string EvaluationHook::named(const std::string& value) const {
  return evaluation_.name.empty() ? value : evaluation_.name + "_" + value;
}

EvaluationHook::Values EvaluationHook::named(const Values& values) const {
  Values all;
  for (const auto& [name, value] : values) all[named(name)] = value;
  return all;
}

// The names of the metrics and, if the model has a loss function, of its mean (TrainingRun::evaluate()).
std::optional<std::vector<std::string>> EvaluationHook::value_names() const {
  if (!evaluation_.feed) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& metric : evaluation_.metrics) names.push_back(named(metric->name()));
  const bool has_loss = !evaluation_.model || evaluation_.model->loss;
  if (has_loss && std::find(names.begin(), names.end(), named("loss")) == names.end())
    names.push_back(named("loss"));
  return names;
}

std::optional<EvaluationHook::Values> EvaluationHook::measured(Training& training) const {
  try {
    return training.evaluate(evaluation_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::InvalidArgument) throw;
    fail(ErrorKind::InvalidArgument, "{} at step {}: {}", label(), training.step, error.what());
  }
}

std::optional<EvaluationHook::Values> EvaluationHook::measure_unless_evaluated(Training& training) const {
  if (!is_set() || !evaluation_.at_end || measured_ == training.step) return std::nullopt;
  const auto values = measured(training);
  return values ? std::optional(named(*values)) : std::nullopt;
}

// If a worker is lost meanwhile, it is called again after the same step.
void EvaluationHook::evaluate(Training& training) {
  const auto values = is_set() ? measured(training) : std::nullopt;
  last_ = training.step;
  if (is_set()) measured_ = training.step;
  if (!values) return;
  write_events(training, *values);
  if (auto* const rows = evaluation_.history) {
    if (!rows->empty() && rows->back().step == training.step) rows->pop_back();
    rows->push_back({training.step, *values});
  }
  training.report_evaluation(evaluation_.name, named(*values));
}

// Returns the writer of the values, or null. A file of its own begins again if the training was set back.
store::EventWriter* EvaluationHook::events_for(Training& training) {
  if (evaluation_.summary_dir.empty() || !training.writes()) return training.events;
  std::string folder = evaluation_.summary_dir;
  if (training.context.identity().is_evaluator) folder += "/evaluator";
  std::optional<int64_t> resumed_after;
  if (training.first_step > 0) resumed_after = training.first_step;
  if (training.step <= last_written_) resumed_after = training.step - 1;
  if (!own_events_ || training.step <= last_written_) {
    store::EventWriterOptions options;
    options.resumed_after = resumed_after;
    own_events_ = training.context.event_stream(folder)->open(folder, options);
  }
  last_written_ = training.step;
  return own_events_.get();
}

// In a folder of its own the tags are the names of the metrics, so that TensorBoard shows them with those of
// other folders.
void EvaluationHook::write_events(Training& training, const Values& values) {
  store::EventWriter* const events = events_for(training);
  if (events == nullptr) return;
  const std::string prefix = evaluation_.summary_dir.empty() ? label() + "_" : "";
  for (const auto& [name, value] : values) events->scalar(prefix + name, training.step, value);
  write_curves(*events, prefix, training.step, evaluation_.metrics);
  if (own_events_) own_events_->flush();
}

std::string EvaluationHook::name() const { return "evaluation-" + label(); }

Snapshot EvaluationHook::state() const {
  if (evaluation_.history == nullptr) return {};
  Json rows = Json::array();
  for (const auto& [step, values] : *evaluation_.history) {
    Json of_row = Json::object();
    for (const auto& [name, value] : values) of_row[name] = json_of_number(value);
    rows.push_back({{"step", step}, {"values", std::move(of_row)}});
  }
  Snapshot state;
  state.values = {{"rows", std::move(rows)}};
  return state;
}

void EvaluationHook::restore(const Snapshot& saved) {
  if (evaluation_.history == nullptr) return;
  evaluation_.history->clear();
  for (const Json& row : saved.values.at("rows")) {
    Evaluated evaluated{.step = row.at("step").get<int64_t>()};
    for (const auto& [name, value] : row.at("values").items())
      evaluated.values[name] = number_of_json(value, "a value of an evaluation");
    evaluation_.history->push_back(std::move(evaluated));
  }
}

namespace hooks {

std::unique_ptr<Hook> evaluation(Evaluation evaluation) {
  constexpr int64_t kEvery = 1000;
  if (!evaluation.every_steps) evaluation.every_steps = evaluation.every_epochs > 0 ? 0 : kEvery;
  auto hook = std::make_unique<EvaluationHook>();
  hook->set(std::move(evaluation));
  if (!hook->is_set())
    fail(ErrorKind::InvalidArgument,
         "{}: there is nothing to evaluate: set Evaluation::feed, or a function, Evaluation::measure",
         hook->label());
  return hook;
}

}  // namespace hooks
}  // namespace tutti
