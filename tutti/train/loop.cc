#include "tutti/train/loop.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/metrics/metrics.h"
#include "tutti/params/agreement.h"
#include "tutti/train/evaluation.h"
#include "tutti/train/export.h"
#include "tutti/train/hooks.h"
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

// The workers that train several nets, each of which has an optimiser with a connected group of its own.
class Loop::Nets final : public Team {
 public:
  Nets(const Context& context, const std::vector<LoopPart>& parts)
      : context_(context), parts_(parts), first_(parts.front().optimizer) {
    for (const LoopPart& part : parts) {
      const StrategyFacts& facts = part.optimizer.strategy_->facts();
      if (!part.optimizer.tables().empty())
        fail(ErrorKind::InvalidArgument,
             "a loop of several nets cannot train the sharded embeddings of '{}': make the nets submodules "
             "of one",
             part.name);
      if (facts.keeps_parameters_elsewhere)
        fail(ErrorKind::InvalidArgument,
             "--strategy {}: a loop of several nets needs connected workers. Use --strategy allreduce, or "
             "train the nets as submodules of one",
             facts.name);
    }
  }

  const Group& group() const override { return first_.group(); }
  const StrategyFacts& facts() const override { return first_.strategy_->facts(); }

  Start start(Session& session, const std::vector<std::string>& plan) override {
    require_same_plan(context_, first_.communicator(), plan);
    Session::Start start = start_together(context_, first_.communicator(), session);
    start.optimizers.resize(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].optimizer.broadcast_from(0);
      if (start.progress.restarts > 0) parts_[i].optimizer.restore(start.optimizers[i]);
    }
    return {start.progress, 0, std::move(start.more)};
  }

  void save(Session& session, const Progress& progress, const Snapshots& more) override {
    std::vector<Optimizer::State> states;
    for (const LoopPart& part : parts_) states.push_back(part.optimizer.gather_state());
    const Snapshots all = gather_generators(first_.communicator(), more);
    on_chief(context_, first_.communicator(), {.what = "the checkpoint", .step = progress.step},
             [&] { session.save(progress, states, all); });
  }

  void finish_saving(Session& session) override { first_.strategy_->finish_saving(session); }
  void merge(const metrics::List& list) override { first_.strategy_->merge(list); }
  void fill(store::Report& report) const override { first_.strategy_->fill(report); }
  void write_timeline() override { first_.write_timeline(); }

  // Abandons the communicators of all parts, since workers may be waiting in any of them.
  void abandon(const std::string& why) noexcept override {
    for (const LoopPart& part : parts_) part.optimizer.abandon(why);
  }

 private:
  const Context& context_;
  const std::vector<LoopPart>& parts_;
  DistributedOptimizer& first_;
};

Loop::Loop(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer,
           const LoopOptions& options)
    : Loop(context, {{"", parameters, optimizer}}, options, Checked{}) {}

Loop::Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options)
    : Loop(context, require_named(parts), options, Checked{}) {}

Loop::Loop(const Context& context, const std::vector<LoopPart>& parts, const LoopOptions& options, Checked)
    : context_(context),
      parts_(parts),
      optimizer_(parts.front().optimizer),
      nets_(parts.size() > 1 ? std::make_unique<Nets>(context_, parts_) : nullptr),
      engine_(context_, nets_ ? static_cast<Team&>(*nets_) : strategy(), session_parts(parts),
              {.lanes = optimizer_.all_lanes(), .name = options.name}, tables()),
      options_(options),
      end_step_(end_step()),
      steps_seen_(optimizer_.steps_here()),
      exceptions_before_(std::uncaught_exceptions()) {
  require_no_export(context_, "a Loop");
  warn_of_unused_flags(context_, {.strategy = strategy().facts().name, .has_tables = !tables().empty()});
  for (const LoopPart& part : parts_) require_own_parameters(part);
  if (!tables().empty()) engine_.training().rows = [this] { return strategy().rows(); };
  engine_.keep_average(averages(parts_, options_));
  engine_.schedule(schedules_of(parts_, options_));
  for (const Schedule& schedule : schedules_of(parts_, options_)) {
    if (schedule) static_cast<void>(schedule(0, end_step_));  // throws if it needs a last step
  }
  engine_.training().end_step = end_step_;
}

Loop::~Loop() {
  if (!begun_ || ended_) return;
  const std::runtime_error why("the program left the training loop before it had ended");
  engine_.fail(why);
  if (std::uncaught_exceptions() > exceptions_before_)
    engine_.abandon(fmt::format("gave up at step {}", optimizer_.steps()), why);
}

int64_t Loop::end_step() const {
  const RunConfig::Training& config = context_.config().training;
  if (config.steps > 0) return config.steps;
  if (steps_per_epoch() > 0) return std::max<int64_t>(1, config.epochs) * steps_per_epoch();
  if (config.epochs == 0) return Training::kEndless;
  fail(ErrorKind::InvalidArgument,
       "--epochs {}: the number of steps per epoch is unknown. Use --steps, or set "
       "LoopOptions::steps_per_epoch in the program",
       config.epochs);
}

// If this worker cannot continue, tells the others so that they do not wait for it.
void Loop::or_abandon(const std::function<void()>& body) {
  try {
    body();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    engine_.fail(error);
    engine_.abandon(fmt::format("gave up at step {}", optimizer_.steps()), error);
    throw;
  }
}

bool Loop::advance(const std::optional<bool>& has_data) {
  bool going_on = false;
  or_abandon([&] {
    if (ended_) return;
    if (context_.identity().is_evaluator) return follow();
    for (bool again = false;; again = true) {
      try {
        if (again) begin_steps();
        going_on = next(has_data);
        return;
      } catch (const Error& error) {
        if (!begun_ || error.kind() != ErrorKind::PeerLost || !strategy().facts().restarts) throw;
        ended_ = false;
        engine_.start_again(error, plan());
      }
    }
  });
  return going_on;
}

bool Loop::next(const std::optional<bool>& has_data) {
  if (const auto lost = std::exchange(optimizer_.lost_, std::nullopt)) throw Error(*lost);
  if (!begun_)
    begin();
  else if (optimizer_.steps_here() != steps_seen_)
    note_step();
  const Wishes reasons = engine_.reasons_to_end();
  const bool going_on = !reasons.end_training() && !engine_.progress().stopped &&
                        engine_.progress().step < engine_.last_step() &&
                        (!has_data.has_value() || optimizer_.goes_on(*has_data));
  if (!going_on) {
    ended_ = true;
    engine_.end(reasons);
  } else if (!prepared_) {
    engine_.before_step();
    optimizer_.wish(engine_.training().wishes);
    prepared_ = true;
  }
  return going_on;
}

void Loop::validate_with(Evaluation evaluation) {
  if (begun_) fail(ErrorKind::InvalidArgument, "Loop::validate_with() was called after the loop had begun");
  if (evaluation.every_epochs > 0 && options_.steps_per_epoch == 0)
    fail(ErrorKind::InvalidArgument,
         "a validation every {} epochs: the number of steps per epoch is unknown. Use every_steps, or set "
         "LoopOptions::steps_per_epoch",
         evaluation.every_epochs);
  engine_.validate(std::move(evaluation));
}

std::map<std::string, double> Loop::measure(const Trainable& model, const data::Feed& feed,
                                            const metrics::List& list, const EvaluateOptions& options) {
  EvaluateOptions as_they_are = options;
  const MovingAverage* const average = engine_.training().average;
  // During the steps of servers each worker measures by itself, since the others are at other steps.
  if (begun_ && !ended_ && strategy().facts().evaluation_parts == 1) as_they_are.here = true;
  as_they_are.last_weights = options.last_weights || (average != nullptr && !average->is_in_use());
  std::map<std::string, double> values;
  or_abandon([&] {
    const metrics::List all = engine_.evaluate(feed, list, as_they_are, &model);
    const bool says = engine_.training().writes() || options.here;
    values = values_of(all, says ? &context_.log() : nullptr);
  });
  return values;
}

void Loop::with_average(const std::function<void()>& body) { engine_.training().with_average(body); }

// The facts that have to be the same on all workers.
std::vector<std::string> Loop::plan() const {
  std::vector<std::string> plan =
      plan_of(context_, parts_.front().parameters, optimizer_.optimizer().options());
  const std::vector<std::string>& of_steps = optimizer_.strategy_options_.plan;
  plan.insert(plan.end(), of_steps.begin(), of_steps.end());
  for (std::string& line : tables().plan()) plan.push_back(std::move(line));
  plan.push_back(end_step_ == Training::kEndless ? "no last step" : fmt::format("{} steps", end_step_));
  plan.push_back(fmt::format("averages {}", fmt::join(averages(parts_, options_), ", ")));
  std::vector<std::string> evaluations = engine_.evaluation_plan();
  if (evaluations.empty()) evaluations.push_back("never evaluated");
  plan.insert(plan.end(), evaluations.begin(), evaluations.end());
  for (std::string& line : engine_.schedule_plan()) plan.push_back(std::move(line));
  return plan;
}

// Evaluates the checkpoints of the loop in an evaluator, which makes no steps.
void Loop::follow() {
  begun_ = ended_ = true;
  if (!tables().empty()) engine_.start({});
  engine_.follow(0);
}

void Loop::begin() {
  engine_.require_nothing_stopped();
  engine_.session().lock();
  engine_.session().describe(facts());
  const std::optional<std::string> stop_reason = engine_.training().stop_reason;
  engine_.start(plan());
  begun_ = optimizer_.in_loop_ = true;
  if (engine_.progress().stopped && optimizer_.group().is_chief())
    context_.log().info("this loop was already stopped after step {}; it will not be continued",
                        engine_.progress().step);
  engine_.begin({.end_step = end_step_, .steps_per_epoch = steps_per_epoch()});
  begin_steps();
  if (stop_reason) engine_.training().stop_reason = stop_reason;
}

void Loop::begin_steps() {
  constexpr int64_t kMany = int64_t{1} << 62;
  engine_.begin_steps();
  steps_seen_ = optimizer_.steps_here();  // steps made before do not count for the loop
  prepared_ = false;
  const int64_t step = engine_.progress().step;
  batch_ = strategy().begin_steps(step, std::clamp(engine_.last_step(), step, kMany), 0).begin;
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
  const int64_t before = engine_.progress().step;
  StepResult made = optimizer_.last_step();
  if (!strategy().facts().keeps_parameters_elsewhere) made.step = before + 1;  // not all steps make an update
  steps_seen_ = optimizer_.steps_here();
  batch_ += 1 + made.missed;
  prepared_ = false;
  if (context_.config().training.nan_guard) hooks::nan_guard(before, made.loss_sum);
  engine_.after_step(made);
}

void Loop::observe(int64_t lane, const Batch& batch, const LossOutput& output) {
  or_abandon([&] {
    if (context_.config().training.nan_guard)
      hooks::nan_guard(parts_.front().parameters, engine_.progress().step, lane, batch, output);
    engine_.after_lane(lane, batch, output);
  });
}

}  // namespace tutti
