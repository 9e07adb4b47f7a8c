#include "tutti/train/training_run.h"

#include <algorithm>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/crc32c.h"
#include "tutti/base/interrupted.h"
#include "tutti/base/text.h"
#include "tutti/store/manifest.h"
#include "tutti/train/hooks.h"
#include "tutti/train/replica.h"

namespace tutti {
namespace {

constexpr const char* kByHook = "by a hook or by the program";

// Returns what the bits of the result depend on besides the program and its settings, each with the flag that
// makes them independent of it.
std::vector<std::string> what_decides_bits(const RunConfig& config, const store::Report& plan,
                                           const RunFacts& facts, int64_t lanes) {
  std::vector<std::string> all;
  const bool several = plan.world > 1;
  if (several && plan.strategy == "ps-async") {
    all.emplace_back(
        "the number of workers, and on whose update comes first (--strategy ps-sync makes the same bits each "
        "time)");
  } else if (!facts.depends_on_workers.empty()) {
    all.push_back(fmt::format("the number of workers ({})", fmt::join(facts.depends_on_workers, ", ")));
  } else if (config.training.lanes == 0 && lanes == plan.world) {
    // The program, or a checkpoint, may fix the number of lanes as well.
    all.emplace_back("the number of workers (set --lanes)");
  }
  if (several && plan.strategy == "ps-sync" && config.servers.backup > 0)
    all.emplace_back("which workers are late (set --backup 0)");
  if (config.compute.threads == 0) all.emplace_back("the number of cores (set --threads)");
  return all;
}

// Returns a checksum of the values and of the floating buffers, on any device.
uint32_t checksum_of(const Parameters& parameters) {
  uint32_t sum = 0;
  const auto add = [&sum](const torch::Tensor& vector) {
    const torch::Tensor values = vector.detach().to(torch::kCPU);
    sum = crc32c({static_cast<const std::byte*>(values.data_ptr()), values.nbytes()}, sum);
  };
  for (const Section& block : parameters.blocks()) add(block.values);
  for (const torch::Tensor& buffers : parameters.buffer_vectors()) add(buffers);
  return sum;
}

// The name of a value of an evaluation in the report; the validation is called "".
std::string reported_name(const std::string& evaluation, const std::string& value) {
  return evaluation.empty() ? "validation_" + value : value;
}

// Makes those evaluations of this step that this process has not made, for the report: hooks and history are
// not told. Calls note(prefix, values) for each.
template <class Note>
void measure_rest(const std::vector<const EvaluationHook*>& evaluations, Training& training,
                  const Note& note) {
  for (const EvaluationHook* evaluation : evaluations) {
    if (const auto values = evaluation->measure_unless_evaluated(training))
      note(evaluation->prefix(), *values);
  }
}

}  // namespace

TrainingRun::TrainingRun(const Context& context, Strategy& strategy, std::vector<SessionPart> parts,
                         const SessionOptions& options, Replica* replica)
    : context_(context),
      strategy_(strategy),
      tables_(strategy.replica().tables()),
      replica_(replica),
      session_(context, strategy.group(), parts, options),
      training_{.context = context,
                .run = *this,
                .group = strategy.group(),
                .parameters = parts.front().parameters,
                .optimizer = parts.front().optimizer,
                .parts = parts,
                .has_rows = !tables_.empty(),
                .module = replica != nullptr ? &replica->module() : nullptr},
      stop_after_(context.config().training.stop_after),
      device_clock_(context.device()) {
  training_.folder = session_.folder();
  if (training_.writes()) pass_advice_ = PassAdvice(&context.log());
  add_state(kGenerators, generators_part(context.device(), strategy.group().rank));
  try {
    hooks_ = hooks::of_flags(context.config());
  } catch (const std::exception& error) {
    abandon("could not start", error);
    throw;
  }
  validation_ = add_first_hook(std::make_unique<EvaluationHook>());
  history_ = add_first_hook(std::make_unique<HistoryHook>());
}

void TrainingRun::validate(Evaluation evaluation) {
  if (evaluation.every_steps.value_or(0) == 0 && evaluation.every_epochs == 0) evaluation.every_epochs = 1;
  validation_->set(std::move(evaluation));
  validation_->reserve(training_);
}

void TrainingRun::keep_average(const std::vector<double>& decays) {
  std::vector<MovingAverage::Net> nets;
  for (size_t i = 0; i < decays.size(); ++i) {
    const SessionPart& part = training_.parts.at(i);
    if (decays[i] != 0) nets.push_back({part.name, part.parameters, decays[i], i == 0 ? &tables_ : nullptr});
  }
  tables_.keep_average(decays.front());
  if (nets.empty()) return;
  training_.average = add_first_hook(std::make_unique<MovingAverage>(std::move(nets)));
  add_state(store::kAveragePart, training_.average->part());
}

void TrainingRun::add_hook(std::unique_ptr<Hook> hook) {
  if (auto* const evaluation = dynamic_cast<EvaluationHook*>(hook.get())) evaluation->reserve(training_);
  const bool saves = !context_.config().checkpoints.logdir.empty();  // with the last hook
  hooks_.insert(saves ? std::prev(hooks_.end()) : hooks_.end(), std::move(hook));
  has_own_hooks_ = true;
}

// Returns the names of the parts of the state that belong to the hooks. Hooks of the same kind are told apart
// by their order.
std::vector<std::string> TrainingRun::hook_names() const {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const auto& hook : hooks_) {
    std::string name = "hook-" + hook->name();
    const int before = seen[name]++;
    if (before > 0) name += fmt::format("-{}", before + 1);
    names.push_back(std::move(name));
  }
  return names;
}

// Returns the state besides the nets and their optimisers.
Snapshots TrainingRun::state() const {
  Snapshots all;
  for (const auto& [name, part] : parts_) all[name] = part.snapshot();
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i) all[names[i]] = hooks_[i]->state();
  std::erase_if(all, [](const auto& entry) { return entry.second.empty(); });
  return all;
}

// Called before the first step after each start.
void TrainingRun::restore_hooks() {
  if (!std::exchange(hooks_are_stale_, false)) return;
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i)
    restore_part(names[i], [&](const Snapshot& state) { hooks_[i]->restore(state); });
}

void TrainingRun::add_state(const std::string& name, StatePart part) {
  const bool is_valid = !name.empty() && name.find_first_not_of(
                                             "abcdefghijklmnopqrstuvwxyz"
                                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_-") == std::string::npos;
  if (!is_valid)
    tutti::fail(ErrorKind::InvalidArgument,
                "'{}' is not a valid name for a part of the state: use letters and digits", name);
  if (name == store::kWeightsPart || name == store::kOptimizerPart || name == store::kRowsPart)
    tutti::fail(ErrorKind::InvalidArgument,
                "'{}' is not available as a name for a part of the state, since Tutti's own part has it",
                name);
  if (!parts_.emplace(name, part).second)
    tutti::fail(ErrorKind::InvalidArgument, "two parts of the state are called '{}'", name);
  restore_part(name, part.restore);
}

void TrainingRun::restore_part(const std::string& name, const std::function<void(const Snapshot&)>& restore) {
  const auto found = found_.find(name);
  if (found == found_.end()) return;
  try {
    restore(found->second);
  } catch (const Json::exception& error) {
    tutti::fail(ErrorKind::DataLoss, "the part '{}' of the checkpoint cannot be restored: {}", name,
                error.what());
  }
  found_.erase(found);
}

void TrainingRun::start(const std::vector<std::string>& plan) {
  const SpanScope span(context_.timeline(), Activity::Step, "start");
  plan_ = plan;
  session_.set_state([this] { return state(); });
  Strategy::Start start = strategy_.start(session_, plan);
  progress_ = start.progress;
  report_.lost_steps += start.lost_steps;
  found_ = std::move(start.more);
  hooks_are_stale_ = true;
  // A worker that joins without a saved average begins with the values of the run, not with its own.
  if (session_.went_on() && training_.average != nullptr && !found_.contains(store::kAveragePart))
    training_.average->restart();
  for (const auto& [name, part] : parts_) restore_part(name, part.restore);
  if (!std::exchange(plan_logged_, true) && strategy_.group().is_chief()) log_plan();
  remember_parameters();
}

void TrainingRun::remember_parameters() {
  if (strategy_.facts().keeps_parameters_elsewhere) checksum_ = checksum_of(training_.parameters);
}

void TrainingRun::require_parameters_as_they_were(const char* since) const {
  const StrategyFacts& facts = strategy_.facts();
  if (!facts.keeps_parameters_elsewhere || checksum_ == checksum_of(training_.parameters)) return;
  tutti::fail(
      ErrorKind::InvalidArgument,
      "the parameters or buffers were changed {} (at step {}), but with --strategy {} the parameter servers "
      "hold them, so the change would be lost. Let the optimiser make such changes (for example "
      "weight_decay), keep values computed from the parameters, such as a moving average, in tensors "
      "outside the model until the training has ended, or use --strategy allreduce",
      since, progress_.step, facts.name);
}

// Says once how the model is trained, and what leaves the bits of the result open.
void TrainingRun::log_plan() {
  const RunConfig& config = context_.config();
  store::Report plan;
  strategy_.fill(plan);
  const auto counted = [](int64_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  context_.log().info("training with {}: {}, {}, {}, {} on {}", plan.strategy, counted(plan.world, "worker"),
                      counted(session_.lanes(), "lane"), counted(context_.threads(), "thread"),
                      config.compute.precision, training_.parameters.device().str());
  if (training_.average != nullptr)
    context_.log().info("validations and evaluations are of the moving average of the weights");
  if (const auto open = what_decides_bits(config, plan, session_.facts(), session_.lanes()); !open.empty())
    context_.log().info("the bits of the result depend on {}", fmt::join(open, " and on "));
}

std::vector<std::string> TrainingRun::plan() {
  constexpr int64_t kOfSteps = 10000;
  note_evaluations();
  std::vector<std::string> plan;
  for (const EvaluationHook* evaluation : evaluations()) plan.push_back(evaluation->plan());
  if (plan.empty()) plan.emplace_back("never evaluated");
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (!schedules_[i]) continue;
    const std::string& part = training_.parts.at(i).name;
    for (const int64_t step : {int64_t{0}, int64_t{100}, int64_t{1000}, kOfSteps})
      plan.push_back(fmt::format("learning rate{} {} at step {} of {}", part.empty() ? "" : " of " + part,
                                 schedules_[i](step, kOfSteps), step, kOfSteps));
  }
  return plan;
}

void TrainingRun::set_learning_rates() {
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (schedules_[i])
      training_.parts.at(i).optimizer.set_learning_rate(schedules_[i](progress_.step, training_.end_step));
  }
}

// Warns if the schedules were made for another number of steps than that of the run.
void TrainingRun::warn_of_other_lengths() const {
  const int64_t end = length_.end_step;
  if (!strategy_.group().is_chief() || progress_.step >= end || end == Training::kEndless) return;
  for (const Schedule& schedule : schedules_) {
    const int64_t scheduled = schedule.end().value_or(end);
    if (end > scheduled)
      context_.log().warning(
          "the learning rate is scheduled for {} steps, but the training ends after step {}: from step {} on "
          "it stays at {:g}. A schedule without a length takes that of the run",
          scheduled, end, scheduled, schedule(scheduled, end));
    else if (end < scheduled && length_.ends_the_run)
      context_.log().warning(
          "the learning rate is scheduled for {} steps, but the training ends after step {}, where it is "
          "still {:g}. A schedule without a length takes that of the run",
          scheduled, end, schedule(end, end));
    if (schedule.follows_the_run() && progress_.end_step > 0 && progress_.end_step != end)
      context_.log().warning(
          "the run was to end after step {}, and now ends after step {}: from here on the learning rate is "
          "scheduled for {} steps, so it is another one than before at the same step",
          progress_.end_step, end, end);
  }
}

void TrainingRun::begin(const Length& length) {
  require_parameters_as_they_were("outside the steps of a fit");
  const StrategyFacts& facts = strategy_.facts();
  length_ = length;
  has_ended_ = false;
  training_.first_step = training_.step = training_.last_step = progress_.step;
  training_.end_step = length.end_step;
  training_.steps_per_epoch = length.steps_per_epoch;
  training_.epoch = epochs_done();
  training_.in_step = facts.in_step;
  training_.keeps_parameters_elsewhere = facts.keeps_parameters_elsewhere;
  note_evaluations();
  was_stopped_ = progress_.stopped;
  if (was_stopped_ && strategy_.group().is_chief())
    context_.log().info(
        "nothing is left to do: the program itself has stopped this training after step {}, in an earlier "
        "run; begin anew in another --logdir",
        progress_.step);
  else if (progress_.step >= length.end_step && strategy_.group().is_chief())
    context_.log().info(
        "nothing is left to do: the run is at step {}, and this training ends after step {}; ask for more "
        "steps to go on (--steps, --epochs), or begin anew in another --logdir",
        progress_.step, length.end_step);
  warn_of_other_lengths();
  progress_.end_step = length.end_step == Training::kEndless ? 0 : length.end_step;
  begin_ = std::chrono::steady_clock::now();
  examples_before_ = progress_.examples;
  session_.note(progress_, RunState::Phase::Training);
  restore_hooks();
  for_each_hook([&](Hook& hook) { hook.begin(training_); });
}

// The order of all work between two steps, from the first to the last.
bool TrainingRun::next(const std::function<bool()>& has_data) {
  for (;;) {
    try {
      if (const auto lost = std::exchange(lost_, std::nullopt)) throw Error(*lost);
      if (!is_running_) begin_steps();
      if (const auto made = std::exchange(made_, std::nullopt)) after_step(*made);
      if (is_prepared_) return true;
      const Wishes reasons = reasons_to_end();
      is_prepared_ = !reasons.end_training() && !progress_.stopped && progress_.step < last_step() &&
                     (!has_data || has_data());
      is_prepared_ ? before_step() : end(reasons);
      return is_prepared_;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost || !strategy_.facts().restarts) throw;
      start_again(error);
    }
  }
}

void TrainingRun::step(const std::function<StepResult()>& make) {
  const SpanScope span(context_.timeline(), Activity::Step, "step", progress_.step);
  try {
    device_clock_.begin_step();
    done(make());
    device_clock_.end_step();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PeerLost) throw;
    lost(error);  // next() decides
  }
}

void TrainingRun::start_again(const Error& error) {
  const Progress before = progress_;
  signals_.reset();
  is_running_ = has_ended_ = false;
  context_.log().warning("{}; the training goes on when the lost task has connected again", error.what());
  try {
    strategy_.settle();
  } catch (const Error&) {
    // After one failure, others are expected.
  }
  start(std::vector<std::string>(plan_));
  context_.log().info("going on at step {}", progress_.step);
  if (progress_.fit < before.fit) go_on_with_fit(before);
  progress_.feeds.resize(std::max(progress_.feeds.size(), before.feeds.size()));
  if (progress_.stopped) training_.end_step = progress_.step;
}

// Continues the current fit if the newest checkpoint belongs to an earlier one, which the program has left.
void TrainingRun::go_on_with_fit(const Progress& before) {
  if (progress_.step != before.fit_begin)
    tutti::fail(ErrorKind::PeerLost,
                "the run was restored to step {}, which belongs to an earlier fit() of the program: start "
                "the program again",
                progress_.step);
  progress_.fit = before.fit;
  progress_.fit_begin = before.fit_begin;
  progress_.feeds = before.feeds;
  progress_.stopped = before.stopped;
  progress_.stop_reason = before.stop_reason;
  strategy_.set_progress(progress_);
}

void TrainingRun::begin_steps() {
  signals_.emplace(context_.config());
  training_.step = training_.last_step = progress_.step;
  training_.went_on = session_.went_on();
  training_.events = session_.events();
  training_.stop_reason = progress_.stop_reason;
  last_step_.wishes = {};
  restore_hooks();
  is_running_ = true;
  is_prepared_ = false;
  made_.reset();
  epoch_begun_ = -1;
  for_each_hook([&](Hook& hook) { hook.after_start(training_); });
  constexpr int64_t kMany = int64_t{1} << 62;
  const int64_t begin = length_.first_epoch_at;
  const int64_t last = std::clamp(last_step(), progress_.step, kMany);
  begun_ = strategy_.begin_steps(progress_.step - begin, last - begin, begin);
  batch_ = begun_->begin;
}

void TrainingRun::before_step() {
  training_.wishes = {};
  set_learning_rates();
  if (training_.steps_per_epoch > 0 && epochs_done() != epoch_begun_) {
    training_.epoch = epoch_begun_ = epochs_done();
    for_each_hook([&](Hook& hook) { hook.begin_epoch(training_); });
  }
  for_each_hook([&](Hook& hook) { hook.before_step(training_); });
  if (training_.in_step) training_.wishes.add(own_reasons());
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
}

void TrainingRun::after_lane(int64_t lane, const Batch& batch, const LossOutput& output) {
  for_each_hook([&](Hook& hook) { hook.after_lane(training_, lane, batch, output); });
}

// Counts the step, unless the worker took no part in it.
void TrainingRun::after_step(const StepResult& result) {
  is_prepared_ = false;
  batch_ += 1 + result.missed;
  if (has_own_hooks_) remember_parameters();
  progress_.step = training_.step = result.step;
  last_step_.wishes = result.wishes;
  if (!result.made) return;
  // Set before a hook saves the step.
  progress_.stopped = training_.in_step && result.wishes.stop;
  last_step_ = result;
  progress_.examples += result.examples;
  const std::optional<std::string> stop_reason = training_.stop_reason;
  const bool ends_epoch = training_.steps_per_epoch > 0 && epochs_done() > epoch_begun_;
  for_each_hook([&](Hook& hook) {
    hook.after_step(training_, result);
    if (ends_epoch) hook.end_epoch(training_);
  });
  if (training_.in_step && training_.stop_reason != stop_reason) {
    progress_.stop_reason = training_.stop_reason;
    strategy_.set_progress(progress_);
  }
  training_.last_step = training_.step;
  note_saved();
  session_.show_life();
}

// The requests of this worker's hooks, and of a signal that it has received, to end the training.
Wishes TrainingRun::own_reasons() const {
  return {.stop = training_.stop_reason.has_value(), .signal = signals_->received().value_or(0)};
}

// All workers that make every step together stop after the step in which a wish has reached every worker; a
// worker without others, or one that makes steps of its own, reacts at once.
Wishes TrainingRun::reasons_to_end() const {
  const Wishes own = own_reasons();
  if (!training_.in_step) return own;
  if (last_step_.wishes.end_training()) return last_step_.wishes;
  return {.signal = strategy_.is_alone() ? own.signal : 0};
}

// The number of complete passes over the feed.
int64_t TrainingRun::epochs_done() const {
  return training_.steps_per_epoch > 0 ? (training_.step - length_.first_epoch_at) / training_.steps_per_epoch
                                       : 0;
}

std::vector<const EvaluationHook*> TrainingRun::evaluations() const {
  std::vector<const EvaluationHook*> all;
  for (const auto& hook : hooks_) {
    const auto* evaluation = dynamic_cast<const EvaluationHook*>(hook.get());
    if (evaluation != nullptr && evaluation->is_set()) all.push_back(evaluation);
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
  require_monitored_values();
  training_.evaluations = static_cast<int>(labels.size());
  training_.knows_values = !known_values().empty();
}

// Returns the names of the values of all evaluations; none if one's are not known before they are measured.
std::vector<std::string> TrainingRun::known_values() const {
  std::vector<std::string> known;
  for (const EvaluationHook* evaluation : evaluations()) {
    const auto names = evaluation->value_names();
    if (!names) return {};
    known.insert(known.end(), names->begin(), names->end());
  }
  return known;
}

// A hook of the program may report values as well, and a function may return any: then a name that does not
// exist is found with the first values.
void TrainingRun::require_monitored_values() const {
  const std::vector<std::string> known = known_values();
  if (known.empty()) return;
  for (const auto& hook : hooks_) {
    const std::string name = hook->monitored();
    if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    tutti::fail(ErrorKind::InvalidArgument,
                "{} monitors '{}', but the evaluations of this training have only {}{}", hook->name(), name,
                fmt::join(known, ", "), did_you_mean(name, known));
  }
}

// Adds the values of an evaluation to the report and the log.
void TrainingRun::note_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  std::string text;
  const size_t prefix = name.empty() ? 0 : name.size() + 1;  // which the values have
  for (const auto& [of_value, value] : values) {
    text += fmt::format("  {} {:.4f}", std::string_view(of_value).substr(prefix), value);
    report_.metrics[reported_name(name, of_value)] = value;
  }
  if (training_.writes())
    context_.log().info("{}{} after step {}:{}", name.empty() ? "validation" : name,
                        training_.average != nullptr ? " of the moving average" : "", training_.step, text);
}

void TrainingRun::report_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  note_evaluation(name, values);
  for (const auto& [of_value, value] : values) evaluated_[reported_name(name, of_value)] = value;
  training_.evaluation = name;
  for_each_hook([&](Hook& hook) { hook.after_validation(training_, values); });
}

// The step of the run after which this process makes no more: the end, or --stop-after.
int64_t TrainingRun::last_step() const {
  return stop_after_ > 0 ? std::min(stop_after_, training_.end_step) : training_.end_step;
}

void TrainingRun::require_nothing_stopped() const {
  if (!context_.stopped_early()) return;
  throw Interrupted(0,
                    "the program ends here: its next training begins when the one that --stop-after has "
                    "stopped is complete");
}

bool TrainingRun::stops_before_fit() {
  if (stop_after_ == 0 || progress_.step < stop_after_) return false;
  stop_early();
  session_.note(progress_, RunState::Phase::Stopped);
  session_.write(report_);
  return true;
}

// Also measures the weights of this step for the report, where a run without --stop-after would not be
// evaluated.
void TrainingRun::stop_early() {
  context_.stopped_early() = true;
  report_.complete = false;
  measure_rest(evaluations(), training_,
               [&](const auto& name, const auto& values) { note_evaluation(name, values); });
  if (strategy_.group().is_chief())
    context_.log().info("stopped after step {}, as --stop-after says: {}", progress_.step,
                        context_.config().checkpoints.logdir.empty()
                            ? "nothing was saved, since --logdir was not given"
                            : "run the program again without it, or with more steps, to continue");
}

void TrainingRun::end(const Wishes& reasons) {
  has_ended_ = true;
  if (reasons.stop) progress_.stopped = true;
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  strategy_.finish(progress_);
  remember_parameters();
  training_.step = progress_.step;
  const bool interrupted = reasons.signal != 0 && training_.step < training_.end_step;
  const bool stops_early = !reasons.end_training() && !progress_.stopped &&
                           training_.step < training_.end_step && training_.step >= last_step();
  training_.interrupted = (interrupted && !training_.stop_reason) || stops_early;
  training_.save_at_end = false;
  for_each_hook([&](Hook& hook) { hook.end(training_); });
  strategy_.finish_saving(session_);
  note_saved();
  report_.complete = !interrupted;
  report_.device_seconds = device_clock_.seconds();
  if (stops_early)
    stop_early();
  else if (!interrupted)  // the run may have been complete when it was resumed
    measure_rest(evaluations(), training_,
                 [&](const auto& name, const auto& values) { note_evaluation(name, values); });
  session_.note(progress_, stops_early   ? RunState::Phase::Stopped
                           : interrupted ? RunState::Phase::Interrupted
                                         : RunState::Phase::Complete);
  write_report();
  begin_ = std::chrono::steady_clock::now();  // this training is counted
  examples_before_ = progress_.examples;
  is_running_ = false;
  if (!stops_early) log_stop(reasons);
  if (interrupted) {
    signals_->forget();
    strategy_.write_timeline();  // all workers stop here
  }
  signals_.reset();
  if (!interrupted) return;
  const char* const saved = context_.config().checkpoints.logdir.empty()
                                ? "nothing was saved, since --logdir was not given"
                            : training_.step == 0 ? "nothing was saved; run the program again to start"
                                                  : "checkpoint saved; run the program again to continue";
  throw Interrupted(
      reasons.signal,
      fmt::format("stopped by {} after step {}{}: {}", signal_name(reasons.signal), training_.step,
                  training_.end_step == Training::kEndless ? "" : fmt::format(" of {}", training_.end_step),
                  saved));
}

// The chief says why the training was ended early. The others usually have the same reason.
void TrainingRun::log_stop(const Wishes& reasons) const {
  if (was_stopped_) return;
  const std::optional<std::string>& reason = training_.stop_reason;
  if (!strategy_.group().is_chief()) {
    if (reason) context_.log().debug("stopped after step {}: {}", training_.step, *reason);
  } else if (reason || reasons.stop) {
    context_.log().info("stopped after step {}: {}", training_.step,
                        reason.value_or("another worker has asked for it"));
  }
}

void TrainingRun::fail(const std::exception& error) noexcept {
  signals_.reset();
  if (!is_running_) return;
  is_running_ = false;
  for (const auto& hook : hooks_) hook->on_error(training_, error);
}

void TrainingRun::abandon(const std::string& what, const std::exception& error) noexcept {
  try {
    strategy_.abandon(fmt::format("{} {}: {}", context_.task().short_name(), what, error.what()));
  } catch (const std::exception&) {
    strategy_.abandon("a worker has failed");  // not even the text could be made
  }
}

void TrainingRun::or_abandon(const std::string& what, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    abandon("could not " + what, error);
    throw;
  }
}

void TrainingRun::or_give_up(const std::function<void()>& body) {
  try {
    body();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    fail(error);
    give_up(error);
    throw;
  }
}

void TrainingRun::give_up(const std::exception& error) noexcept {
  abandon(fmt::format("gave up at step {}", training_.step), error);
}

void TrainingRun::save() {
  if (context_.identity().is_evaluator) return;
  strategy_.settle();
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  progress_.stop_reason = training_.stop_reason;
  note_loss();
  strategy_.save(session_, progress_, state());
  remember_parameters();  // saving may have pulled newer parameters from the servers
}

// If the workers do not evaluate together, the chief has counted everything.
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

void TrainingRun::note_saved() {
  const auto saved = session_.take_saved();
  if (saved) for_each_hook([&](Hook& hook) { hook.after_save(training_, saved->path, saved->step); });
}

// Without a step, as after a resume, the loss is that of the checkpoint.
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
