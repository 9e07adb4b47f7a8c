#include "tutti/train/training_run.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/train/coverage.h"

namespace tutti {
namespace {

constexpr const char* kByHook = "by a hook or by the program";

}  // namespace

void TrainingRun::set_learning_rates() {
  for (size_t i = 0; i < schedules_.size(); ++i) {
    if (schedules_[i])
      training_.parts.at(i).optimizer.set_learning_rate(schedules_[i](progress_.step, training_.end_step));
  }
}

void TrainingRun::begin(const Length& length) {
  require_parameters_as_they_were("outside the steps of a fit");
  const StrategyFacts& facts = strategy_.facts();
  length_ = length;
  has_ended_ = has_failed_ = false;
  report_.complete = false;
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
  if (may_change()) epochs()->set_fit(progress_.fit);
  restore_hooks();
  for_each_hook([&](Hook& hook) { hook.begin(training_); });
}

// The order of all work between two steps, from the first to the last.
bool TrainingRun::next(const std::function<bool()>& has_data) {
  const int64_t fit = progress_.fit;
  const LossIsHandled here(handles_loss_);
  std::optional<Wishes> ending;
  for (;;) {
    try {
      if (const auto lost = std::exchange(lost_, std::nullopt)) throw Error(*lost);
      if (!is_running_) begin_steps();
      if (!is_started_) tell_start();
      if (made_) after_step(*made_);
      made_.reset();
      if (is_prepared_) return true;
      const Wishes reasons = reasons_to_end();
      const bool goes_on = !reasons.end_training() && !progress_.stopped && progress_.step < last_step();
      if (!goes_on || (has_data && !has_data())) {
        ending = reasons;
        make_with_all([&] {
          end(reasons);
          return Calls::end_of(fit);
        });
        after_end(reasons);
        return false;
      }
      if (std::exchange(last_step_.wishes.change, false)) {
        const int leaving = std::exchange(last_step_.wishes.leaving, 0);
        training_.wishes.leaving > 0 ? leave(leaving) : change({}, leaving);
        continue;
      }
      before_step();
      is_prepared_ = true;
      return true;
    } catch (const Error& error) {
      if (!is_loss(error)) throw;
      change_unless_over(error);
      if (progress_.fit > fit) {
        leave_fit();
        return false;
      }
      if (ending && calls_.is_over()) {  // for all workers
        know_fit_of_others();
        calls_.pass();
        after_end(*ending);
        return false;
      }
      ending.reset();
      is_prepared_ = has_ended_ = false;
    }
  }
}

void TrainingRun::step(const std::function<StepResult()>& make) {
  const SpanScope span(context_.timeline(), Activity::Step, "step", progress_.step);
  const LossIsHandled here(handles_loss_);
  try {
    device_clock_.begin_step();
    done(make());
    device_clock_.end_step();
  } catch (const Error& error) {
    if (!is_loss(error)) throw;
    lost(error);  // next() decides
  }
}

// Begins again with the state that the other tasks have, or with the newest checkpoint.
void TrainingRun::start_again(const std::optional<Error>& why) {
  const Progress before = progress_;
  signals_.reset();
  is_running_ = has_ended_ = false;
  is_told_ = true;
  if (may_change()) session_.lock();
  if (why && !may_change())
    context_.log().warning("{}; the training goes on when the lost task has connected again", why->what());
  if (why) session_.count_failure();
  start(std::vector<std::string>(plan_));
  if (!calls_.has_ended(before.fit)) session_.note(progress_, RunState::Phase::Training);
  if (may_change() && progress_.restarts == 0 && before.step > 0)
    tutti::fail(ErrorKind::DataLoss, "{}there is no checkpoint to which the other workers could go back",
                why ? fmt::format("{}; ", why->what()) : "");
  if (may_change()) {
    report_.lost_steps += std::max<int64_t>(0, before.step - progress_.step);
    note_change(why);
  } else {
    context_.log().info("going on at step {}", progress_.step);
  }
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
  progress_.end_step = before.end_step;
  progress_.feeds = before.feeds;
  progress_.stopped = false;
  progress_.stop_reason.reset();
  strategy_.set_progress(progress_);
  // As if the program were started again: the checkpoint has the hooks after the earlier fit.
  training_.step = training_.last_step = progress_.step;
  restore_hooks();
  for (int fit = 0; fit < 2; ++fit) for_each_hook([&](Hook& hook) { hook.begin(training_); });
}

void TrainingRun::begin_steps() {
  signals_.emplace(context_.config());
  training_.step = training_.last_step = progress_.step;
  training_.went_on = session_.went_on();
  training_.stop_reason = progress_.stop_reason;
  open_files();
  restore_hooks();
  is_running_ = true;
  is_started_ = is_prepared_ = false;
  epoch_begun_ = -1;
  if (is_told_) {
    last_step_.wishes = {};
    made_.reset();
  } else {  // this worker has joined the others before all hooks were told
    training_.last_step = progress_.step - 1;
    made_ = last_step_;
  }
}

// Tells the hooks that the steps begin, and saves a checkpoint if the others could not go on without one.
// A worker that joins in the middle of the steps only tells its own hooks.
void TrainingRun::tell_start() {
  const int64_t fit = progress_.fit;
  const auto tell = [&] {
    for_each_hook([&](Hook& hook) { hook.after_start(training_); });
    return Calls::beginning_of(fit);
  };
  training_.have_begun = calls_.has_begun(fit);
  if (training_.have_begun) {
    calls_.pass_all();
    tell();
  } else {
    make_with_all(tell);
  }
  const bool needs_checkpoint = may_change() && strategy_.facts().restarts && progress_.step == 0;
  if (needs_checkpoint && !calls_.has_saved_first(fit)) {
    make_with_all([&] {
      save();
      strategy_.finish_saving(session_);
      return Calls::first_save_of(fit);
    });
  }
  is_started_ = true;
  begin_feed();
}

void TrainingRun::open_files() {
  training_.events = session_.events();
  hashes_.reset();
  if (context_.config().checkpoints.hash_every > 0 && training_.writes() && !training_.folder.empty())
    hashes_.emplace(training_.folder, progress_.step);
}

void TrainingRun::begin_feed() {
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
void TrainingRun::count_step(const StepResult& result) {
  is_prepared_ = false;
  batch_ += 1 + result.missed;
  if (has_own_hooks_) remember_parameters();
  progress_.step = training_.step = result.step;
  last_step_.wishes = result.wishes;
  if (!result.made) return;
  // Set before a hook saves the step.
  progress_.stopped = training_.in_step && result.wishes.stop;
  last_step_ = result;
  name_not_covered();
  progress_.examples += result.examples;
  is_told_ = false;
  hooks_told_ = 0;
}

// Counts the step and tells the hooks. If a worker is lost among them, goes on with the hook that was
// interrupted.
void TrainingRun::after_step(const StepResult& result) {
  if (result.again) {
    is_prepared_ = false;
    return begin_feed();
  }
  if (is_told_) {
    count_step(result);
    if (!result.made) return;
  }
  tell_step(result);
  changes_in_step_ = 0;
  training_.last_step = training_.step;
  note_hash();
  is_told_ = true;
  made_.reset();  // a failure of what follows must not let it be counted once more
  note_saved();
  session_.show_life(progress_);
  if (may_change() && training_.events != nullptr) training_.events->flush();  // this worker may be lost
}

void TrainingRun::tell_step(const StepResult& result) {
  const SpanScope span(context_.timeline(), Activity::Step, "hooks", progress_.step);
  const std::optional<std::string> stop_reason = training_.stop_reason;
  const bool ends_epoch = training_.steps_per_epoch > 0 && epochs_done() > epoch_begun_;
  for (; hooks_told_ < hooks_.size(); ++hooks_told_) {
    hooks_[hooks_told_]->after_step(training_, result);
    if (ends_epoch) hooks_[hooks_told_]->end_epoch(training_);
  }
  if (training_.in_step && training_.stop_reason != stop_reason) {
    progress_.stop_reason = training_.stop_reason;
    strategy_.set_progress(progress_);
  }
}

// The requests of this worker's hooks, and of a signal that it has received, to end the training. A signal to
// this worker alone lets it leave the others.
Wishes TrainingRun::own_reasons() const {
  Wishes wishes{.stop = training_.stop_reason.has_value(), .signal = signals_->received().value_or(0)};
  if (!may_change()) return wishes;
  const bool leaves = wishes.signal == SIGTERM && strategy_.group().world > 1 && !epochs()->job_stops();
  if (leaves) {
    wishes.signal = 0;
    wishes.leaving = 1;
  }
  wishes.change = leaves || epochs()->change_is_due();
  return wishes;
}

// All workers that make every step together stop after the step in which a wish has reached every worker; a
// worker without others, or one that makes steps of its own, reacts at once, and so do all in the last epoch.
Wishes TrainingRun::reasons_to_end() const {
  if (may_change() && epochs()->is_last()) return {.signal = SIGTERM};
  const Wishes own = own_reasons();
  if (!training_.in_step) return own;
  if (last_step_.wishes.end_training()) return last_step_.wishes;
  const int leaving = last_step_.wishes.leaving;
  if (leaving > 0 && strategy_.group().world - leaving < epochs()->least()) return {.signal = SIGTERM};
  return {.signal = strategy_.is_alone() ? own.signal : 0};
}

// The number of complete passes over the feed.
int64_t TrainingRun::epochs_done() const {
  return training_.steps_per_epoch > 0 ? (training_.step - length_.first_epoch_at) / training_.steps_per_epoch
                                       : 0;
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
  with_all([&]() -> Json {
    stop_early();
    session_.note(progress_, RunState::Phase::Stopped);
    session_.write(report_);
    return {};
  });
  return true;
}

// Also measures the weights of this step for the report, where a run without --stop-after would not be
// evaluated.
void TrainingRun::stop_early() {
  context_.stopped_early() = true;
  report_.complete = false;
  measure_rest();
  if (strategy_.group().is_chief())
    context_.log().info("stopped after step {}, as --stop-after says: {}", progress_.step,
                        context_.config().checkpoints.logdir.empty()
                            ? "nothing was saved, since --logdir was not given"
                            : "run the program again without it, or with more steps, to continue");
}

// All workers call the same operators: one of them warns.
void TrainingRun::name_not_covered() const {
  static const Log kQuiet{LogLevel::Off, ""};
  tutti::name_not_covered(training_.writes() ? context_.log() : kQuiet, context_.chosen_kernels(),
                          progress_.step);
}

bool TrainingRun::is_interrupted(const Wishes& reasons) const {
  return reasons.signal != 0 && training_.step < training_.end_step;
}

bool TrainingRun::stops_early(const Wishes& reasons) const {
  return !reasons.end_training() && !progress_.stopped && training_.step < training_.end_step &&
         training_.step >= last_step();
}

void TrainingRun::end(const Wishes& reasons) {
  has_ended_ = true;
  if (reasons.stop) progress_.stopped = true;
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  strategy_.finish(progress_);
  remember_parameters();
  training_.step = progress_.step;
  const bool interrupted = is_interrupted(reasons);
  training_.interrupted = (interrupted && !training_.stop_reason) || stops_early(reasons);
  training_.save_at_end = false;
  for_each_hook([&](Hook& hook) { hook.end(training_); });
  strategy_.finish_saving(session_);
  note_saved();
  report_.complete = !interrupted;
  report_.device_seconds = device_clock_.seconds();
  if (stops_early(reasons))
    stop_early();
  else if (!interrupted)  // the run may have been complete when it was resumed
    measure_rest();
  session_.note(progress_, stops_early(reasons) ? RunState::Phase::Stopped
                           : interrupted        ? RunState::Phase::Interrupted
                                                : RunState::Phase::Complete);
  write_report();
  begin_ = std::chrono::steady_clock::now();  // this training is counted
  examples_before_ = progress_.examples;
}

// If the chief was lost before it had written the report, the next one has. All workers that come to this
// have ended all the rest.
void TrainingRun::after_end(const Wishes& reasons) {
  const bool interrupted = is_interrupted(reasons);
  report_.complete = !interrupted && !stops_early(reasons);
  is_running_ = false;
  if (!stops_early(reasons)) log_stop(reasons);
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

// Only the first error is told, since later ones follow from it.
void TrainingRun::fail(const std::exception& error) noexcept {
  if (std::exchange(has_failed_, true)) return;
  signals_.reset();
  session_.note_error(error);
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
    const auto* const of_task = dynamic_cast<const Error*>(&error);
    const bool goes_on = of_task != nullptr && may_change() && is_loss(*of_task);
    if (!goes_on) abandon("could not " + what, error);
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
  strategy_.drop_unused_rows(progress_.step);
  write_checkpoint();
}

void TrainingRun::write_checkpoint() {
  if (has_own_hooks_) require_parameters_as_they_were(kByHook);
  const SpanScope span(context_.timeline(), Activity::Save, "checkpoint", progress_.step);
  if (!strategy_.facts().keeps_parameters_elsewhere && !strategy_.is_alone()) compared_weights();
  progress_.stop_reason = training_.stop_reason;
  note_loss();
  strategy_.save(session_, progress_, state());
  remember_parameters();  // saving may have pulled newer parameters from the servers
}

std::string TrainingRun::compared_weights() {
  strategy_.settle();
  std::string sha256 = session_.weights_sha256();
  strategy_.require_same_weights(progress_.step, sha256);
  return sha256;
}

void TrainingRun::note_hash() {
  const int64_t every = context_.config().checkpoints.hash_every;
  if (every == 0 || progress_.step % every != 0 || strategy_.facts().keeps_parameters_elsewhere) return;
  const SpanScope span(context_.timeline(), Activity::Save, "hash", progress_.step);
  const std::string sha256 = compared_weights();
  if (hashes_) hashes_->add(progress_.step, sha256);
}

void TrainingRun::note_saved() {
  for (const Session::Saved& saved : session_.take_saved())
    for_each_hook([&](Hook& hook) { hook.after_save(training_, saved.path, saved.step); });
}

}  // namespace tutti
