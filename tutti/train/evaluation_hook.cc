#include "tutti/train/evaluation_hook.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/random_scope.h"

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

// Returns the curves that TensorBoard can show, by the names of their metrics.
std::map<std::string, std::vector<metrics::CurvePoint>> curves_of(const metrics::List& list) {
  std::map<std::string, std::vector<metrics::CurvePoint>> curves;
  for (const auto& metric : list) {
    if (metric->has_uneven_thresholds()) continue;
    if (auto points = metric->curve(); !points.empty()) curves[metric->name()] = std::move(points);
  }
  return curves;
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

// Looks at the first example, which the chief can read if each worker has its own part of the feed.
void require_columns(const data::Feed& feed, const metrics::List& list) {
  if (feed.size() == 0 || list.empty()) return;
  const std::lock_guard lock(generator_mutex());
  const RandomScope own_numbers(torch::kCPU);
  const Batch batch = feed.read(std::vector<int64_t>{0});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.tensors()) names.push_back(name);
  metrics::require_columns(list, names);
}

// Returns the names of the metrics and, if there is one, of the mean loss (BatchCounter).
std::vector<std::string> names_of(const metrics::List& list, bool has_loss) {
  std::vector<std::string> names;
  for (const auto& metric : list) names.push_back(metric->name());
  if (has_loss && std::find(names.begin(), names.end(), "loss") == names.end()) names.emplace_back("loss");
  return names;
}

metrics::List clones_of(const metrics::List& list) {
  metrics::List clones;
  for (const auto& metric : list) clones.push_back(metric->clone());
  return clones;
}

}  // namespace

void write_curves(store::EventWriter& events, const std::string& prefix, int64_t step,
                  const metrics::List& list) {
  for (const auto& [name, points] : curves_of(list)) write_curve(events, prefix + name, step, points);
}

EvaluationHook::EvaluationHook(Measure measure, const Interval& interval,
                               const hooks::EvaluationOptions& options)
    : measure_(std::move(measure)), interval_(interval), options_(options) {
  require_evaluation_name(options.name);
  if (interval.steps < 0)
    fail(ErrorKind::InvalidArgument, "{}: every {} steps; .every must be 0 or more", label(), interval.steps);
}

// The metrics are the hook's own, since a program may use one object for several purposes.
EvaluationHook::Measure EvaluationHook::counting(data::Feed feed, metrics::List list,
                                                 const hooks::EvaluationOptions& options) {
  metrics::require_distinct_names(list);
  Measure measure;
  measure.names = names_of(list, !options.model || options.model->loss);
  measure.require_columns = [feed, list] { require_columns(feed, list); };
  measure.call = [feed = std::move(feed), list = clones_of(list), options](Training& training) {
    const auto counted = training.count({.feed = feed,
                                         .metrics = list,
                                         .options = {.batch = options.batch, .steps = options.steps},
                                         .model = options.model ? &*options.model : nullptr});
    std::optional<Evaluation> result;
    if (!counted) return result;
    result.emplace();
    result->values =
        values_of(training.context, *counted, training.writes() ? Say::WhyNoValue : Say::Nothing);
    result->curves = curves_of(*counted);
    return result;
  };
  return measure;
}

EvaluationHook::Measure EvaluationHook::calling(Training::Measure measure,
                                                std::vector<std::shared_ptr<torch::nn::Module>> nets) {
  return {.call = [measure = std::move(measure), nets = std::move(nets)](Training& training) {
    auto values = training.measure(measure, nets);
    return values ? std::optional(Evaluation{std::move(*values), {}}) : std::nullopt;
  }};
}

void EvaluationHook::set_validation(Measure measure, const Interval& interval) {
  if (interval.steps < 0 || interval.epochs < 0)
    fail(ErrorKind::InvalidArgument,
         "a validation every {} steps, {} epochs: .every_steps and .every_epochs must be 0 or more",
         interval.steps, interval.epochs);
  measure_ = std::move(measure);
  interval_ = interval;
  if (interval.steps == 0) interval_.epochs = std::max<int64_t>(1, interval.epochs);
}

std::string EvaluationHook::plan() const {
  return fmt::format("{} every {} steps, {} epochs, {} at the start, {} at the end", label(), interval_.steps,
                     interval_.epochs, options_.at_start ? "and" : "not", options_.at_end ? "and" : "not");
}

void EvaluationHook::begin(Training& training) {
  last_ = training.step;
  if (measure_.require_columns && training.writes()) std::exchange(measure_.require_columns, {})();
}

void EvaluationHook::reserve(const Training& training) {
  if (options_.summary_dir.empty() || !training.writes() || std::exchange(claimed_, true)) return;
  if (!training.context.claim_folder(options_.summary_dir))
    fail(ErrorKind::InvalidArgument,
         "{}: another evaluation or a training of this program writes to {}: give each evaluation a "
         ".summary_dir of its own",
         label(), options_.summary_dir);
}

// It is unknown whether a step that was made without this worker was evaluated.
void EvaluationHook::after_start(Training& training) {
  if (training.went_on) last_ = -1;
  if (options_.at_start && training.step == 0 && !training.went_on) evaluate(training);
}

void EvaluationHook::after_step(Training& training, const StepResult& result) {
  const int64_t every = interval_.steps > 0 ? interval_.steps : interval_.epochs * training.steps_per_epoch;
  // The evaluation of the end is made here where possible, so that a checkpoint of the last step contains it.
  const bool is_last = training.in_step && (result.wishes.stop || training.step >= training.end_step);
  if (training.passed(every) || (options_.at_end && (is_last || training.due(every)))) evaluate(training);
}

void EvaluationHook::end(Training& training) {
  if (options_.at_end && last_ != training.step && !training.interrupted) evaluate(training);
}

std::string EvaluationHook::named(const std::string& value) const {
  return options_.name.empty() ? value : options_.name + "_" + value;
}

std::map<std::string, double> EvaluationHook::named(const Evaluation& result) const {
  std::map<std::string, double> values;
  for (const auto& [name, value] : result.values) values[named(name)] = value;
  return values;
}

std::optional<std::vector<std::string>> EvaluationHook::value_names() const {
  std::optional<std::vector<std::string>> names = measure_.names;
  if (names)
    std::transform(names->begin(), names->end(), names->begin(), [&](const auto& n) { return named(n); });
  return names;
}

std::optional<Evaluation> EvaluationHook::measured(Training& training) const {
  const SpanScope span(training.context.timeline(), Activity::Evaluate, "evaluation", training.step);
  BufferScope buffers;  // a module may change its buffers also in evaluation mode
  for (const SessionPart& part : training.parts) buffers.add(part.parameters);
  try {
    return measure_.call(training);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::InvalidArgument) throw;
    fail(ErrorKind::InvalidArgument, "{} at step {}: {}", label(), training.step, error.what());
  }
}

std::optional<std::map<std::string, double>> EvaluationHook::measure_unless_evaluated(
    Training& training) const {
  if (!is_set() || !options_.at_end || measured_ == training.step) return std::nullopt;
  const auto result = measured(training);
  return result ? std::optional(named(*result)) : std::nullopt;
}

void EvaluationHook::evaluate(Training& training) {
  last_ = training.step;
  if (!is_set()) return;
  measured_ = training.step;
  const std::optional<Evaluation> result = measured(training);
  if (!result) return;
  write_events(training, *result);
  if (options_.history != nullptr) options_.history->push_back({training.step, result->values});
  training.report_evaluation(options_.name, named(*result));
}

// Returns the writer of the values, or null. A file of its own begins again if the training was set back.
store::EventWriter* EvaluationHook::events_for(Training& training) {
  if (options_.summary_dir.empty() || !training.writes()) return training.events;
  std::string folder = options_.summary_dir;
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
void EvaluationHook::write_events(Training& training, const Evaluation& result) {
  store::EventWriter* const events = events_for(training);
  if (events == nullptr) return;
  const std::string prefix = options_.summary_dir.empty() ? label() + "_" : "";
  for (const auto& [name, value] : result.values) events->scalar(prefix + name, training.step, value);
  for (const auto& [name, points] : result.curves) write_curve(*events, prefix + name, training.step, points);
  if (own_events_) own_events_->flush();
}

std::string EvaluationHook::name() const { return "evaluation-" + label(); }

Snapshot EvaluationHook::state() const {
  if (options_.history == nullptr) return {};
  Json rows = Json::array();
  for (const auto& [step, values] : *options_.history) {
    Json of_row = Json::object();
    for (const auto& [name, value] : values) of_row[name] = json_of_number(value);
    rows.push_back({{"step", step}, {"values", std::move(of_row)}});
  }
  Snapshot state;
  state.values = {{"rows", std::move(rows)}};
  return state;
}

void EvaluationHook::restore(const Snapshot& saved) {
  if (options_.history == nullptr) return;
  options_.history->clear();
  for (const Json& row : saved.values.at("rows")) {
    hooks::Evaluated evaluated{.step = row.at("step").get<int64_t>()};
    for (const auto& [name, value] : row.at("values").items())
      evaluated.values[name] = number_of_json(value, "a value of an evaluation");
    options_.history->push_back(std::move(evaluated));
  }
}

namespace hooks {

std::unique_ptr<Hook> evaluation(data::Feed feed, metrics::List metrics, const EvaluationOptions& options) {
  return std::make_unique<EvaluationHook>(
      EvaluationHook::counting(std::move(feed), std::move(metrics), options),
      EvaluationHook::Interval{.steps = options.every}, options);
}

std::unique_ptr<Hook> evaluation(std::function<std::map<std::string, double>()> measure,
                                 const EvaluationOptions& options) {
  return std::make_unique<EvaluationHook>(EvaluationHook::calling(std::move(measure), options.nets),
                                          EvaluationHook::Interval{.steps = options.every}, options);
}

}  // namespace hooks
}  // namespace tutti
