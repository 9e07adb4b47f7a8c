#include "tutti/train/loop.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/interrupted.h"
#include "tutti/params/agreement.h"
#include "tutti/train/hooks/nan_guard.h"
#include "tutti/train/hooks/of_flags.h"
#include "tutti/train/stopping.h"
#include "tutti/train/together.h"

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
      parameters_(parts.front().parameters),
      optimizer_(parts.front().optimizer),
      session_(context, session_parts(parts), {.lanes = optimizer_.all_lanes(), .name = options.name}),
      training_{.context = context, .parameters = parameters_, .optimizer = optimizer_.optimizer()},
      steps_seen_(optimizer_.steps_here()),
      exceptions_before_(std::uncaught_exceptions()) {
  require_whole_group(context, optimizer_.communicator());
  try {
    hooks_ = hooks::of_flags(context.flags());
  } catch (const std::exception& error) {
    abandon(error);
    throw;
  }
  training_.end_step = end_step(options);
  training_.in_step = true;
  training_.save_checkpoint = [this] { save(); };
  if (optimizer_.communicator().world() > 1)
    training_.merge = [this](metrics::Metric& metric) { merge(optimizer_.communicator(), metric); };
}

Loop::~Loop() {
  if (!signals_ || ended_ || failed_) return;
  const std::runtime_error why("the program left the training loop before it had ended");
  tell_hooks(why);
  if (std::uncaught_exceptions() > exceptions_before_) abandon(why);
}

// Abandons the communicators of all parts, since workers may be waiting in any of them.
void Loop::abandon(const std::exception& error) {
  for (const LoopPart& part : parts_) part.optimizer.abandon(error);
}

void Loop::tell_hooks(const std::exception& error) noexcept {
  failed_ = true;
  for (const auto& hook : hooks_) hook->on_error(training_, error);
}

int64_t Loop::end_step(const LoopOptions& options) const {
  const Flags& flags = context_.flags();
  if (flags.steps > 0) return flags.steps;
  if (options.steps_per_epoch > 0) return std::max<int64_t>(1, flags.epochs) * options.steps_per_epoch;
  if (flags.epochs == 0) return Training::kEndless;
  fail(ErrorKind::InvalidArgument,
       "--epochs {}: the number of steps per epoch is unknown. Use --steps, or set "
       "LoopOptions::steps_per_epoch in the program",
       flags.epochs);
}

void Loop::add_hook(std::unique_ptr<Hook> hook) { hooks::add(hooks_, context_.flags(), std::move(hook)); }

template <class Call>
void Loop::for_each_hook(Call call) {
  const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
  for (const auto& hook : hooks_) call(*hook);
}

// If this worker cannot continue, tells the others so that they do not wait for it.
template <class Body>
auto Loop::or_abandon(Body body) {
  try {
    return body();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    if (signals_ && !failed_) tell_hooks(error);
    abandon(error);
    throw;
  }
}

bool Loop::goes_on() {
  return or_abandon([&] { return !ended_ && advance({}); });
}

bool Loop::goes_on(bool has_data) {
  return or_abandon([&] { return !ended_ && advance(has_data); });
}

bool Loop::advance(const std::optional<bool>& has_data) {
  if (!signals_) {
    begin();
  } else if (step() > progress_.step) {
    note_step();
  }
  // All workers stop after the step in which the request reached every worker. Only a worker without others
  // reacts to a signal at once.
  Wishes wishes = last_step_.wishes;
  if (!wishes.end_training() && !training_.merge) wishes.signal = wish_to_stop(training_, *signals_).signal;
  const bool going_on = !wishes.end_training() && !progress_.stopped && training_.step < training_.end_step &&
                        (!has_data.has_value() || optimizer_.goes_on(*has_data));
  if (!going_on) {
    end(wishes);
  } else if (!prepared_) {
    prepare_step();
  }
  return going_on;
}

void Loop::begin() {
  comm::Communicator& comm = optimizer_.communicator();
  require_same_plan(context_, comm,
                    {training_.end_step == Training::kEndless ? "no last step"
                                                              : fmt::format("{} steps", training_.end_step)});
  session_.claim();
  if (comm.rank() == 0) session_.lock();
  session_.describe(facts());
  Session::Start start = start_together(context_, comm, session_);
  progress_ = start.progress;
  start.optimizers.resize(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].optimizer.broadcast_from(0);
    if (progress_.restarts > 0) parts_[i].optimizer.restore(start.optimizers[i]);
  }
  training_.first_step = training_.step = training_.last_step = progress_.step;
  training_.events = session_.events();
  training_.stop_reason = progress_.stop_reason;
  if (progress_.stopped && context_.is_chief())
    context_.log().info("this loop was already stopped after step {}; it will not be continued",
                        progress_.step);
  steps_seen_ = optimizer_.steps_here();  // steps made before do not count for the loop
  signals_.emplace();
  begin_ = std::chrono::steady_clock::now();
  examples_before_ = progress_.examples;
  for_each_hook([&](Hook& hook) { hook.begin(training_); });
  for_each_hook([&](Hook& hook) { hook.after_start(training_); });
}

RunFacts Loop::facts() const {
  RunFacts facts;
  for (const LoopPart& part : parts_) {
    const RunFacts own = facts_of(context_, part.optimizer.reducer_options(), part.optimizer.clip_norm(),
                                  optimizer_.communicator().world(), part.parameters);
    const std::string before = part.name.empty() ? "" : part.name + " ";
    for (const auto& [name, value] : own.settings.items()) facts.settings[before + name] = value;
    facts.conditions.update(own.conditions);
  }
  return facts;
}

void Loop::prepare_step() {
  training_.wishes = {};
  for_each_hook([&](Hook& hook) { hook.before_step(training_); });
  training_.wishes.add(wish_to_stop(training_, *signals_));
  optimizer_.wish(training_.wishes);
  prepared_ = true;
}

void Loop::note_step() {
  if (step() != progress_.step + 1) {
    fail(ErrorKind::InvalidArgument,
         "the optimiser's step() was called {} times between two calls of Loop::goes_on(); it has to be "
         "called exactly once",
         step() - progress_.step);
  }
  steps_seen_ = optimizer_.steps_here();
  prepared_ = false;
  const GradientMean::Result& made = optimizer_.last_step();
  training_.step = ++progress_.step;
  progress_.examples += made.examples;
  last_step_ = {training_.step, true, made.examples, made.loss_sum, made.wishes};
  progress_.stopped = made.wishes.stop;
  for_each_hook([&](Hook& hook) { hook.after_step(training_, last_step_); });
  training_.last_step = training_.step;
}

void Loop::end(const Wishes& wishes) {
  for_each_hook([&](Hook& hook) { hook.end(training_); });
  write_report();
  ended_ = true;
  try {
    end_as_wished(training_, wishes, *signals_);
  } catch (const Interrupted&) {
    optimizer_.write_timeline();  // all workers stop here
    signals_.reset();
    throw;
  }
  signals_.reset();
}

void Loop::write_report() {
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - begin_;
  const double examples = static_cast<double>(progress_.examples - examples_before_);
  const int world = optimizer_.communicator().world();
  store::Report report;
  report.strategy = world > 1 ? "allreduce" : "single";
  report.reduce = optimizer_.reduce();
  report.world = world;
  report.seconds = lasted.count();
  report.examples_per_second = lasted.count() > 0 ? examples / lasted.count() : 0;
  note_loss();
  session_.fill(report, progress_);
  session_.write(report);
}

void Loop::save() {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  progress_.stop_reason = training_.stop_reason;
  note_loss();
  std::vector<Optimizer::State> states;
  for (const LoopPart& part : parts_) states.push_back(part.optimizer.gather_state());
  on_chief(context_, optimizer_.communicator(), {.what = "the checkpoint", .step = progress_.step},
           [&] { session_.save(progress_, states); });
}

void Loop::note_loss() {
  if (last_step_.has_loss()) progress_.loss = last_step_.loss();
}

void Loop::observe(int64_t lane, const Batch& batch, const LossOutput& output) {
  or_abandon([&] {
    if (context_.flags().nan_guard) hooks::nan_guard()(parameters_, progress_.step, lane, batch, output);
    for_each_hook([&](Hook& hook) { hook.after_lane(training_, lane, batch, output); });
  });
}

}  // namespace tutti
