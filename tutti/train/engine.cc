#include "tutti/train/engine.h"

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
  for (const Stretch& block : parameters.blocks()) add(block.values);
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

Engine::Engine(const Context& context, Team& team, std::vector<SessionPart> parts,
               const SessionOptions& options, embedding::Tables& tables, Replica* replica)
    : context_(context),
      team_(team),
      tables_(tables),
      replica_(replica),
      session_(context, team.group(), parts, options),
      training_{.context = context,
                .group = team.group(),
                .parameters = parts.front().parameters,
                .optimizer = parts.front().optimizer,
                .parts = parts,
                .module = replica != nullptr ? &replica->module() : nullptr},
      stop_after_(context.config().training.stop_after) {
  training_.report_validation = [this](const std::map<std::string, double>& values) {
    report_validation(values);
  };
  training_.report_evaluation = [this](const std::string& name, const std::map<std::string, double>& values) {
    report_evaluation(name, values);
  };
  training_.evaluate = [this](const Evaluation& evaluation) { return evaluate(evaluation); };
  training_.save_checkpoint = [this] { save(); };
  training_.folder = session_.folder();
  if (training_.writes()) pass_advice_ = PassAdvice(&context.log());
  add_state(kGenerators, generators_part(context.device(), team.group().rank));
  try {
    hooks_ = hooks::of_flags(context.config());
  } catch (const std::exception& error) {
    abandon("could not start", error);
    throw;
  }
  validation_ = add_first_hook(std::make_unique<EvaluationHook>());
  history_ = add_first_hook(std::make_unique<HistoryHook>());
}

void Engine::validate(Evaluation evaluation) {
  if (evaluation.every_steps.value_or(0) == 0 && evaluation.every_epochs == 0) evaluation.every_epochs = 1;
  validation_->set(std::move(evaluation));
  validation_->reserve(training_);
}

void Engine::keep_average(const std::vector<double>& decays) {
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

void Engine::add_hook(std::unique_ptr<Hook> hook) {
  if (auto* const evaluation = dynamic_cast<EvaluationHook*>(hook.get())) evaluation->reserve(training_);
  const bool saves = !context_.config().checkpoints.logdir.empty();  // with the last hook
  hooks_.insert(saves ? std::prev(hooks_.end()) : hooks_.end(), std::move(hook));
  has_own_hooks_ = true;
}

// Returns the names of the parts of the state that belong to the hooks. Hooks of the same kind are told apart
// by their order.
std::vector<std::string> Engine::hook_names() const {
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
Snapshots Engine::state() const {
  Snapshots all;
  for (const auto& [name, part] : parts_) all[name] = part.snapshot();
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i) all[names[i]] = hooks_[i]->state();
  std::erase_if(all, [](const auto& entry) { return entry.second.empty(); });
  return all;
}

// Called before the first step after each start.
void Engine::restore_hooks() {
  if (!std::exchange(hooks_are_stale_, false)) return;
  const std::vector<std::string> names = hook_names();
  for (size_t i = 0; i < hooks_.size(); ++i)
    restore_part(names[i], [&](const Snapshot& state) { hooks_[i]->restore(state); });
}

void Engine::add_state(const std::string& name, StatePart part) {
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

void Engine::restore_part(const std::string& name, const std::function<void(const Snapshot&)>& restore) {
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

void Engine::start(const std::vector<std::string>& plan) {
  const SpanScope span(context_.timeline(), Activity::Step, "start");
  session_.set_state([this] { return state(); });
  Team::Start start = team_.start(session_, plan);
  progress_ = start.progress;
  report_.lost_steps += start.lost_steps;
  found_ = std::move(start.more);
  hooks_are_stale_ = true;
  // A worker that joins without a saved average begins with the values of the run, not with its own.
  if (session_.went_on() && training_.average != nullptr && !found_.contains(store::kAveragePart))
    training_.average->restart();
  for (const auto& [name, part] : parts_) restore_part(name, part.restore);
  if (!std::exchange(plan_logged_, true) && team_.group().is_chief()) log_plan();
  remember_parameters();
}

void Engine::start_again(const Error& error, const std::vector<std::string>& plan) {
  signals_.reset();
  is_running_ = false;
  context_.log().warning("{}; the training goes on when the lost task has connected again", error.what());
  try {
    team_.settle();
  } catch (const Error&) {
    // After one failure, others are expected.
  }
  start(plan);
  context_.log().info("going on at step {}", progress_.step);
  if (progress_.stopped) training_.end_step = progress_.step;
}

void Engine::remember_parameters() {
  if (team_.facts().keeps_parameters_elsewhere) checksum_ = checksum_of(training_.parameters);
}

void Engine::require_parameters_as_they_were(const char* since) const {
  const StrategyFacts& facts = team_.facts();
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
void Engine::log_plan() {
  const RunConfig& config = context_.config();
  store::Report plan;
  team_.fill(plan);
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

std::vector<std::string> Engine::schedule_plan() const {
  constexpr int64_t kOfSteps = 10000;
  std::vector<std::string> plan;
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (!schedules_[i]) continue;
    const std::string& part = training_.parts.at(i).name;
    for (const int64_t step : {int64_t{0}, int64_t{100}, int64_t{1000}, kOfSteps})
      plan.push_back(fmt::format("learning rate{} {} at step {} of {}", part.empty() ? "" : " of " + part,
                                 schedules_[i](step, kOfSteps), step, kOfSteps));
  }
  return plan;
}

void Engine::set_learning_rates() {
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (schedules_[i])
      training_.parts.at(i).optimizer.set_learning_rate(schedules_[i](progress_.step, training_.end_step));
  }
}

// Warns if the schedules were made for another number of steps than that of the run.
void Engine::warn_of_other_lengths() const {
  const int64_t end = length_.end_step;
  if (!team_.group().is_chief() || progress_.step >= end || end == Training::kEndless) return;
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

void Engine::begin(const Length& length) {
  const StrategyFacts& facts = team_.facts();
  length_ = length;
  training_.first_step = training_.step = training_.last_step = progress_.step;
  training_.end_step = length.end_step;
  training_.steps_per_epoch = length.steps_per_epoch;
  training_.epoch = epochs_done();
  training_.in_step = facts.in_step;
  training_.keeps_parameters_elsewhere = facts.keeps_parameters_elsewhere;
  training_.merge = {};
  if (facts.evaluation_parts > 1) training_.merge = [this](const metrics::List& list) { team_.merge(list); };
  training_.evaluations = static_cast<int>(evaluation_plan().size());
  training_.knows_values = !known_values().empty();
  was_stopped_ = progress_.stopped;
  if (was_stopped_ && team_.group().is_chief())
    context_.log().info(
        "nothing is left to do: the program itself has stopped this training after step {}, in an earlier "
        "run; begin anew in another --logdir",
        progress_.step);
  else if (progress_.step >= length.end_step && team_.group().is_chief())
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

void Engine::begin_steps() {
  signals_.emplace(context_.config());
  training_.step = training_.last_step = progress_.step;
  training_.went_on = session_.went_on();
  training_.events = session_.events();
  training_.stop_reason = progress_.stop_reason;
  last_step_.wishes = {};
  restore_hooks();
  is_running_ = true;
  epoch_begun_ = -1;
  for_each_hook([&](Hook& hook) { hook.after_start(training_); });
}

void Engine::before_step() {
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

void Engine::after_lane(int64_t lane, const Batch& batch, const LossOutput& output) {
  for_each_hook([&](Hook& hook) { hook.after_lane(training_, lane, batch, output); });
}

void Engine::after_step(const StepResult& result) {
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
    team_.set_progress(progress_);
  }
  training_.last_step = training_.step;
  note_saved();
  session_.show_life();
}

// The requests of this worker's hooks, and of a signal that it has received, to end the training.
Wishes Engine::own_reasons() const {
  return {.stop = training_.stop_reason.has_value(), .signal = signals_->received().value_or(0)};
}

Wishes Engine::reasons_to_end() const {
  const Wishes own = own_reasons();
  if (!training_.in_step) return own;
  if (last_step_.wishes.end_training()) return last_step_.wishes;
  return {.signal = team_.is_alone() ? own.signal : 0};
}

// The number of complete passes over the feed.
int64_t Engine::epochs_done() const {
  return training_.steps_per_epoch > 0 ? (training_.step - length_.first_epoch_at) / training_.steps_per_epoch
                                       : 0;
}

std::vector<const EvaluationHook*> Engine::evaluations() const {
  std::vector<const EvaluationHook*> all;
  for (const auto& hook : hooks_) {
    const auto* evaluation = dynamic_cast<const EvaluationHook*>(hook.get());
    if (evaluation != nullptr && evaluation->is_set()) all.push_back(evaluation);
  }
  return all;
}

std::vector<std::string> Engine::evaluation_plan() const {
  std::vector<std::string> plan;
  std::set<std::string> labels;
  for (const EvaluationHook* evaluation : evaluations()) {
    if (!labels.insert(evaluation->label()).second)
      tutti::fail(
          ErrorKind::InvalidArgument,
          "two evaluations of this training are called '{}', so the values of one would replace those "
          "of the other: give one a name (Evaluation::name)",
          evaluation->label());
    plan.push_back(evaluation->plan());
  }
  require_monitored_values();
  return plan;
}

// Returns the names of the values of all evaluations; none if one's are not known before they are measured.
std::vector<std::string> Engine::known_values() const {
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
void Engine::require_monitored_values() const {
  const std::vector<std::string> known = known_values();
  if (known.empty()) return;
  for (const auto& hook : hooks_) {
    const auto* const monitors = dynamic_cast<const MonitorsValue*>(hook.get());
    if (monitors == nullptr || std::find(known.begin(), known.end(), monitors->monitored()) != known.end())
      continue;
    tutti::fail(ErrorKind::InvalidArgument,
                "{} monitors '{}', but the evaluations of this training have only {}{}", hook->name(),
                monitors->monitored(), fmt::join(known, ", "), did_you_mean(monitors->monitored(), known));
  }
}

void Engine::report_validation(const std::map<std::string, double>& values) {
  for (const auto& [name, value] : values) {
    if (training_.events != nullptr) training_.events->scalar("validation_" + name, training_.step, value);
  }
  report_evaluation("", values);
}

// Adds the values of an evaluation to the report and the log.
void Engine::note_evaluation(const std::string& name, const std::map<std::string, double>& values) {
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

void Engine::report_evaluation(const std::string& name, const std::map<std::string, double>& values) {
  note_evaluation(name, values);
  for (const auto& [of_value, value] : values) evaluated_[reported_name(name, of_value)] = value;
  training_.evaluation = name;
  for_each_hook([&](Hook& hook) { hook.after_validation(training_, values); });
}

int64_t Engine::last_step() const {
  return stop_after_ > 0 ? std::min(stop_after_, training_.end_step) : training_.end_step;
}

void Engine::require_nothing_stopped() const {
  if (!context_.stopped_early()) return;
  throw Interrupted(0,
                    "the program ends here: its next training begins when the one that --stop-after has "
                    "stopped is complete");
}

bool Engine::stops_before_fit() {
  if (stop_after_ == 0 || progress_.step < stop_after_) return false;
  stop_early();
  session_.note(progress_, RunState::Phase::Stopped);
  session_.write(report_);
  return true;
}

// Also measures the weights of this step for the report, where a run without --stop-after would not be
// evaluated.
void Engine::stop_early() {
  context_.stopped_early() = true;
  report_.complete = false;
  measure_rest(evaluations(), training_,
               [&](const auto& name, const auto& values) { note_evaluation(name, values); });
  if (team_.group().is_chief())
    context_.log().info("stopped after step {}, as --stop-after says: {}", progress_.step,
                        context_.config().checkpoints.logdir.empty()
                            ? "nothing was saved, since --logdir was not given"
                            : "run the program again without it, or with more steps, to continue");
}

void Engine::end(const Wishes& reasons) {
  if (reasons.stop) progress_.stopped = true;
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  team_.finish_fit(progress_);
  remember_parameters();
  training_.step = progress_.step;
  const bool interrupted = reasons.signal != 0 && training_.step < training_.end_step;
  const bool stops_early = !reasons.end_training() && !progress_.stopped &&
                           training_.step < training_.end_step && training_.step >= last_step();
  training_.interrupted = (interrupted && !training_.stop_reason) || stops_early;
  training_.save_at_end = false;
  for_each_hook([&](Hook& hook) { hook.end(training_); });
  team_.finish_saving(session_);
  note_saved();
  report_.complete = !interrupted;
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
    team_.write_timeline();  // all workers stop here
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
void Engine::log_stop(const Wishes& reasons) const {
  if (was_stopped_) return;
  const std::optional<std::string>& reason = training_.stop_reason;
  if (!team_.group().is_chief()) {
    if (reason) context_.log().debug("stopped after step {}: {}", training_.step, *reason);
  } else if (reason || reasons.stop) {
    context_.log().info("stopped after step {}: {}", training_.step,
                        reason.value_or("another worker has asked for it"));
  }
}

void Engine::fail(const std::exception& error) noexcept {
  signals_.reset();
  if (!is_running_) return;
  is_running_ = false;
  for (const auto& hook : hooks_) hook->on_error(training_, error);
}

void Engine::abandon(const std::string& what, const std::exception& error) noexcept {
  try {
    team_.abandon(fmt::format("{} {}: {}", context_.task().short_name(), what, error.what()));
  } catch (const std::exception&) {
    team_.abandon("a worker has failed");  // not even the text could be made
  }
}

void Engine::or_abandon(const std::string& what, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    abandon("could not " + what, error);
    throw;
  }
}

void Engine::save() {
  team_.settle();
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  progress_.stop_reason = training_.stop_reason;
  note_loss();
  team_.save(session_, progress_, state());
  remember_parameters();  // saving may have pulled newer parameters from the servers
}

void Engine::note_saved() {
  const auto saved = session_.take_saved();
  if (saved) for_each_hook([&](Hook& hook) { hook.after_save(training_, saved->path, saved->step); });
}

// Without a step, as after a resume, the loss is that of the checkpoint.
void Engine::note_loss() {
  if (last_step_.has_loss())
    progress_.loss = last_step_.loss();
  else if (last_step_.examples > 0)
    progress_.loss.reset();
}

store::Events Engine::events() const {
  const std::string& folder = session_.folder();
  return folder.empty() ? store::Events() : store::Events(context_.event_stream(folder));
}

void Engine::write_report() {
  const std::chrono::duration<double> lasted =
      is_running_ ? std::chrono::steady_clock::now() - begin_ : std::chrono::duration<double>(0);
  const auto examples = static_cast<double>(progress_.examples - examples_before_);
  report_.seconds += lasted.count();
  report_.examples_per_second = lasted.count() > 0 ? examples / lasted.count() : 0;
  note_loss();
  report_.history = to_json(history_->history());
  session_.fill(report_, progress_);
  team_.fill(report_);
  session_.write(report_);
}

}  // namespace tutti
