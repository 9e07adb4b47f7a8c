#include "tutti/train/loop.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/plan.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/export.h"
#include "tutti/train/hooks.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/unused_flags.h"

namespace tutti {
namespace {

// Requires names that are distinct and can be a prefix before a dot.
const std::vector<LoopPart>& require_named(const std::vector<LoopPart>& parts) {
  if (parts.empty()) fail(ErrorKind::InvalidArgument, "the loop has no net, so there is nothing to train");
  std::set<std::string> names;
  for (const LoopPart& part : parts) {
    if (part.name.empty() || part.name.find_first_of("./") != std::string::npos)
      fail(ErrorKind::InvalidArgument, "'{}' is not a valid name for a net: use letters and digits",
           part.name);
    if (!names.insert(part.name).second)
      fail(ErrorKind::InvalidArgument, "two nets of a loop are called '{}'", part.name);
  }
  return parts;
}

// The decay of each net's average; 0: none.
std::vector<double> averages(const std::vector<LoopPart>& parts, const LoopOptions& options) {
  std::vector<double> all;
  for (const LoopPart& part : parts) all.push_back(part.average != 0 ? part.average : options.average);
  return all;
}

std::vector<Schedule> schedules_of(const std::vector<LoopPart>& parts, const LoopOptions& options) {
  std::vector<Schedule> all;
  for (const LoopPart& part : parts)
    all.push_back(part.learning_rate ? part.learning_rate : options.learning_rate);
  return all;
}

void require_own_parameters(const LoopPart& part) {
  if (&part.parameters == &part.optimizer.parameters()) return;
  fail(ErrorKind::InvalidArgument,
       "the loop was given parameters{} that its optimiser does not train: pass the same ones to both",
       part.name.empty() ? "" : fmt::format(" of '{}'", part.name));
}

std::vector<SessionPart> session_parts(const std::vector<LoopPart>& parts) {
  std::vector<SessionPart> all;
  for (const LoopPart& part : parts) all.push_back({part.name, part.parameters, part.optimizer.optimizer()});
  return all;
}

}  // namespace

Loop::Loop(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer,
           const LoopOptions& options)
    : Loop(context, {{"", parameters, optimizer}}, options, Checked{}) {}

Loop::Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options)
    : Loop(context, require_named(parts), options, Checked{}) {}

Loop::Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options, Checked)
    : context_(context),
      parts_(parts),
      optimizer_(parts.front().optimizer),
      run_(context_, strategy(), session_parts(parts),
           {.lanes = optimizer_.all_lanes(), .name = options.name}),
      options_(options),
      end_step_(end_step()),
      steps_seen_(optimizer_.steps_here()),
      exceptions_before_(std::uncaught_exceptions()) {
  require_no_export(context_, "a Loop");
  warn_of_unused_flags(context_, {.strategy = strategy().facts().name, .has_tables = !tables().empty()});
  for (const LoopPart& part : parts_) require_own_parameters(part);
  run_.keep_average(averages(parts_, options_));
  run_.schedule(schedules_of(parts_, options_));
  for (const Schedule& schedule : schedules_of(parts_, options_)) {
    if (schedule) static_cast<void>(schedule(0, end_step_));  // throws if it needs a last step
  }
  run_.training().end_step = end_step_;
  set_other_nets();
}

// The nets of a loop have groups of their own, and are started and saved together.
void Loop::set_other_nets() {
  if (parts_.size() == 1) return;
  std::vector<AllReduce*> nets;
  for (const LoopPart& part : parts_) {
    if (!part.optimizer.tables().empty())
      fail(ErrorKind::InvalidArgument,
           "a loop of several nets cannot train the sharded embeddings of '{}': make the nets submodules of "
           "one",
           part.name);
    if (part.optimizer.all_reduce_ == nullptr)
      fail(ErrorKind::InvalidArgument,
           "--strategy {}: a loop of several nets needs connected workers. Use --strategy allreduce, or "
           "train the nets as submodules of one",
           part.optimizer.strategy_->facts().name);
    nets.push_back(part.optimizer.all_reduce_);
  }
  nets.front()->set_other_nets({nets.begin() + 1, nets.end()});
}

Loop::~Loop() {
  if (begun_ && !run_.has_ended()) {
    const std::runtime_error why(optimizer_.failure_.empty()
                                     ? "the program left the training loop before it had ended"
                                     : optimizer_.failure_);
    run_.fail(why);
    if (std::uncaught_exceptions() > exceptions_before_) run_.give_up(why);
  }
  // The other nets may end before the first.
  if (parts_.size() > 1) optimizer_.all_reduce_->set_other_nets({});
}

int64_t Loop::end_step() const {
  const RunConfig::Training& config = context_.config().training;
  if (config.steps > 0) return config.steps;
  if (steps_per_epoch() > 0) return std::max<int64_t>(1, config.epochs) * steps_per_epoch();
  if (config.epochs == 0) return Training::kEndless;
  fail(ErrorKind::InvalidArgument,
       "--epochs {}: the number of steps per epoch is unknown, or 0. Use --steps, or set "
       "LoopOptions::steps_per_epoch in the program",
       config.epochs);
}

bool Loop::advance(const std::optional<bool>& has_data) {
  bool going_on = false;
  run_.or_give_up([&] {
    if (run_.has_ended()) return;
    if (context_.identity().is_evaluator) {  // which makes no steps
      begun_ = true;
      if (!tables().empty()) run_.start({});
      return run_.follow(0);
    }
    if (!begun_) {
      if (!begin()) return;
    } else if (const auto lost = std::exchange(optimizer_.lost_, std::nullopt)) {
      run_.lost(*lost);
    } else if (optimizer_.steps_here() != steps_seen_) {
      note_step();
    } else if (std::exchange(optimizer_.again_, false)) {
      run_.done({.again = true});
    }
    going_on = run_.next(has_data ? [&] { return optimizer_.goes_on(*has_data); } : std::function<bool()>());
    if (going_on && !optimizer_.in_step_) optimizer_.wish(run_.training().wishes);
  });
  return going_on;
}

void Loop::validate_with(Evaluation evaluation) {
  if (begun_) fail(ErrorKind::InvalidArgument, "Loop::validate_with() was called after the loop had begun");
  if (evaluation.every_epochs > 0 && options_.steps_per_epoch == 0)
    fail(ErrorKind::InvalidArgument,
         "a validation every {} epochs: the number of steps per epoch is unknown, or 0. Use every_steps, or "
         "set "
         "LoopOptions::steps_per_epoch",
         evaluation.every_epochs);
  run_.validate(std::move(evaluation));
}

std::map<std::string, double> Loop::measure(const Trainable& model, const data::Feed& feed,
                                            const metrics::List& list, const EvaluateOptions& options) {
  EvaluateOptions as_they_are = options;
  const MovingAverage* const average = run_.training().average;
  // During the steps of servers each worker measures by itself, since the others are at other steps.
  if (begun_ && !run_.has_ended() && strategy().facts().evaluation_parts == 1) as_they_are.here = true;
  as_they_are.last_weights = options.last_weights || (average != nullptr && !average->is_in_use());
  const bool is_in_step = optimizer_.in_step_ || optimizer_.fetched_;  // which could not be made any more
  std::map<std::string, double> values;
  run_.or_give_up([&] {
    values = run_.values_of_all(as_they_are.here || is_in_step, [&] {
      const metrics::List all = run_.evaluate(feed, list, as_they_are, &model);
      const bool says = run_.training().writes() || options.here;
      return values_of(all, says ? &context_.log() : nullptr);
    });
  });
  return values;
}

std::string Loop::export_model(const std::string& dir, const Trainable& model, const data::Feed& examples,
                               const ExportOptions& options) {
  if (!begun_)
    fail(ErrorKind::InvalidArgument,
         "Loop::export_model() was called before the loop has begun: tutti::export_model() exports a "
         "checkpoint");
  return run_.export_model(dir, examples, options, &model);
}

void Loop::with_average(const std::function<void()>& body) { run_.training().with_average(body); }

// The facts that have to be the same on all workers.
std::vector<std::string> Loop::plan() {
  std::vector<std::string> plan =
      plan_of(context_, parts_.front().parameters, optimizer_.optimizer().options());
  const std::vector<std::string>& of_steps = optimizer_.strategy_options_.plan;
  plan.insert(plan.end(), of_steps.begin(), of_steps.end());
  for (std::string& line : tables().plan()) plan.push_back(std::move(line));
  plan.push_back(end_step_ == Training::kEndless ? "no last step" : fmt::format("{} steps", end_step_));
  plan.push_back(fmt::format("averages {}", fmt::join(averages(parts_, options_), ", ")));
  for (std::string& line : run_.plan()) plan.push_back(std::move(line));
  return plan;
}

// Returns false if the others have ended the loop before this worker has joined them.
bool Loop::begin() {
  run_.require_nothing_stopped();
  run_.session().lock();
  run_.session().describe(facts());
  const std::optional<std::string> stop_reason = run_.training().stop_reason;
  run_.start(plan());
  begun_ = optimizer_.in_loop_ = true;
  steps_seen_ = optimizer_.steps_here();  // steps made before do not count for the loop
  if (stop_reason) run_.progress().stop_reason = stop_reason;
  if (run_.passes_over(run_.progress().fit)) return false;
  run_.begin({.end_step = end_step_, .steps_per_epoch = steps_per_epoch()});
  return true;
}

RunFacts Loop::facts() const {
  RunFacts facts;
  for (const LoopPart& part : parts_) {
    const RunFacts own = facts_of(context_, part.optimizer.reducer_options(), part.optimizer.clip_norm(),
                                  optimizer_.group().world, part.parameters);
    const std::string before = part.name.empty() ? "" : part.name + " ";
    for (const auto& [name, value] : own.settings.items()) facts.settings[before + name] = value;
    facts.conditions.update(own.conditions);
    for (const std::string& why : own.depends_on_workers) {
      if (std::find(facts.depends_on_workers.begin(), facts.depends_on_workers.end(), why) ==
          facts.depends_on_workers.end())
        facts.depends_on_workers.push_back(why);
    }
  }
  return facts;
}

void Loop::note_step() {
  if (optimizer_.steps_here() != steps_seen_ + 1) {
    fail(ErrorKind::InvalidArgument,
         "the optimiser's step() was called {} times between two calls of Loop::goes_on(); it has to be "
         "called exactly once",
         optimizer_.steps_here() - steps_seen_);
  }
  const int64_t before = run_.progress().step;
  StepResult made = optimizer_.last_step();
  if (!strategy().facts().keeps_parameters_elsewhere) made.step = before + 1;  // not all steps make an update
  steps_seen_ = optimizer_.steps_here();
  if (context_.config().training.nan_guard) hooks::nan_guard(before, made.loss_sum);
  run_.done(made);
}

void Loop::observe(int64_t lane, const Batch& batch, const LossOutput& output) {
  if (optimizer_.copy_) return;  // of another worker
  run_.or_give_up([&] {
    if (context_.config().training.nan_guard)
      hooks::nan_guard(parts_.front().parameters, run_.progress().step, lane, batch, output);
    run_.after_lane(lane, batch, output);
  });
}

}  // namespace tutti
