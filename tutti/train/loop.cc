#include "tutti/train/loop.h"

#include <algorithm>
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

Loop::Loop(const Context& context, Parameters& parameters, DistributedOptimizer& optimizer,
           const LoopOptions& options)
    : context_(context),
      parameters_(parameters),
      optimizer_(optimizer),
      session_(context, parameters, optimizer.optimizer(), optimizer.all_lanes()),
      hooks_(hooks::of_flags(context.flags())),
      training_{.context = context, .parameters = parameters, .optimizer = optimizer.optimizer()},
      steps_seen_(optimizer.steps_here()),
      exceptions_before_(std::uncaught_exceptions()) {
  training_.end_step = end_step(options);
  training_.in_step = true;
  training_.save_checkpoint = [this] { save(); };
  if (optimizer.communicator().world() > 1)
    training_.merge = [this](metrics::Metric& metric) { merge(optimizer_.communicator(), metric); };
}

Loop::~Loop() {
  if (!signals_ || ended_ || failed_) return;
  const std::runtime_error why("the loop was left before its end");
  tell_hooks(why);
  if (std::uncaught_exceptions() > exceptions_before_) optimizer_.abandon(why);
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
       "--epochs {}: how many steps an epoch has is not known here (LoopOptions::steps_per_epoch): give "
       "--steps",
       flags.epochs);
}

void Loop::add_hook(std::unique_ptr<Hook> hook) { hooks_.push_back(std::move(hook)); }

template <class Call>
void Loop::for_each_hook(Call call) {
  const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
  for (const auto& hook : hooks_) call(*hook);
}

// What this worker cannot do, the others do not wait for.
template <class Body>
auto Loop::or_abandon(Body body) {
  try {
    return body();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    if (signals_ && !failed_) tell_hooks(error);
    optimizer_.abandon(error);
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
  // Whoever is alone stops at once, the others when all have heard of it.
  const int64_t stop = training_.merge ? last_step_.wishes.stop : wish_to_stop(training_, *signals_);
  const bool going_on = stop == 0 && training_.step < training_.end_step &&
                        (!has_data.has_value() || optimizer_.goes_on(*has_data));
  if (!going_on) {
    end(stop);
  } else if (!prepared_) {
    prepare_step();
  }
  return going_on;
}

void Loop::begin() {
  comm::Communicator& comm = optimizer_.communicator();
  require_same_plan(comm,
                    {training_.end_step == Training::kEndless ? "no last step"
                                                              : fmt::format("{} steps", training_.end_step)});
  const Session::Start start = start_together(context_, comm, session_);
  optimizer_.broadcast_from(0);
  progress_ = start.progress;
  if (progress_.restarts > 0) optimizer_.restore(start.optimizer);
  training_.first_step = training_.step = training_.last_step = progress_.step;
  training_.events = session_.events();
  steps_seen_ = optimizer_.steps_here();  // what was made before is none of the loop's
  signals_.emplace();
  begin_ = std::chrono::steady_clock::now();
  examples_before_ = progress_.examples;
  for_each_hook([&](Hook& hook) { hook.begin(training_); });
  for_each_hook([&](Hook& hook) { hook.after_start(training_); });
}

void Loop::prepare_step() {
  training_.wishes = {.stop = wish_to_stop(training_, *signals_), .save = false};
  for_each_hook([&](Hook& hook) { hook.before_step(training_); });
  optimizer_.wish(training_.wishes);
  prepared_ = true;
}

void Loop::note_step() {
  if (step() != progress_.step + 1) {
    fail(ErrorKind::InvalidArgument,
         "the optimiser's step() was called {} times between two calls of Loop::goes_on(), and a step is one",
         step() - progress_.step);
  }
  steps_seen_ = optimizer_.steps_here();
  prepared_ = false;
  const GradientMean::Result& made = optimizer_.last_step();
  training_.step = ++progress_.step;
  progress_.examples += made.examples;
  last_step_ = {training_.step, true, made.examples, made.loss_sum, made.wishes};
  for_each_hook([&](Hook& hook) { hook.after_step(training_, last_step_); });
  training_.last_step = training_.step;
}

void Loop::end(int64_t stop) {
  for_each_hook([&](Hook& hook) { hook.end(training_); });
  write_report();
  ended_ = true;
  try {
    end_as_wished(training_, stop, *signals_);
  } catch (const Interrupted&) {
    optimizer_.write_timeline();  // all of them stop here
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
  if (last_step_.has_loss()) report.loss = last_step_.loss();
  session_.fill(report, progress_);
  session_.write(report);
}

void Loop::save() {
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  const Optimizer::State state = optimizer_.gather_state();
  on_chief(context_, optimizer_.communicator(), {.what = "the checkpoint", .step = progress_.step},
           [&] { session_.save(progress_, state); });
}

void Loop::observe(int64_t lane, const Batch& batch, const LossOutput& output) {
  or_abandon([&] {
    if (context_.flags().nan_guard) hooks::nan_guard()(parameters_, progress_.step, lane, batch, output);
    for_each_hook([&](Hook& hook) { hook.after_lane(training_, lane, batch, output); });
  });
}

}  // namespace tutti
