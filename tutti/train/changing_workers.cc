#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "tutti/comm/communicator.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/train/training_run.h"
#include "tutti/transport/member_epochs.h"

// The part of TrainingRun in which its workers change while they train (`tutti run --min`).
namespace tutti {
namespace {

// What all workers of an epoch do first.
void agree(const Context& context, comm::Communicator& comm, Calls& calls,
           const std::vector<std::string>& plan, bool joins) {
  require_newcomers_to_fit(context, comm, plan, joins);
  calls.agree(comm, joins);
}

}  // namespace

bool TrainingRun::passes_over(int64_t fit) {
  if (joins_) {
    const std::optional<int64_t> others = epochs()->fit();
    if (!others || fit >= *others) return false;
  } else if (!calls_.has_ended(fit)) {
    return false;
  }
  calls_.pass_fit(fit);
  has_ended_ = report_.complete = true;
  return true;
}

// Makes the call to which this worker has come, unless all have made it (Calls). A loss is thrown.
Json TrainingRun::make_with_all(const std::function<Json()>& make) {
  if (epochs() == nullptr) return make();
  if (!calls_.is_over()) {
    calls_.made(make());
    strategy_.group().communicator->barrier({.what = "the end of a call of all workers"}).wait();
  }
  const Json outcome = calls_.outcome();
  calls_.pass();
  return outcome;
}

Json TrainingRun::with_all(const std::function<Json()>& make) {
  if (handles_loss_ || !has_begun_) return make();
  const LossIsHandled here(handles_loss_);
  const bool was_running = is_running_;
  const bool had_ended = has_ended_;
  for (;;) {
    try {
      return make_with_all(make);
    } catch (const Error& error) {
      if (!may_change() || !is_loss(error)) throw;
      change_unless_over(error);
      // The step that the program makes in its loop cannot be made any more.
      if (was_running && !is_running_) throw;
      has_ended_ = had_ended;
      know_fit_of_others();
    }
  }
}

TrainingRun::Values TrainingRun::values_of_all(bool here, const std::function<Values()>& measure) {
  if (here) return measure();
  return with_all([&]() -> Json { return measure(); }).get<Values>();
}

// The others may have begun the next fit, and compare no plans with this one.
void TrainingRun::know_fit_of_others() {
  if (const auto fit = epochs()->fit()) joined_in_ = std::max(joined_in_, *fit);
}

// Comes together with the others after a loss. A worker that has made its call may find that there is no
// other epoch, since one that has made it as well has ended with success: then this one needs nobody.
void TrainingRun::change_unless_over(const Error& why) {
  try {
    change(why);
  } catch (const Error& error) {
    if (!calls_.is_over() || error.kind() != ErrorKind::PeerLost) throw;
  }
}

// Returns null if the workers never change.
comm::Epochs* TrainingRun::epochs() const {
  const auto& communicator = strategy_.group().communicator;
  return communicator ? communicator->epochs() : nullptr;
}

bool TrainingRun::may_change() const {
  const StrategyFacts& facts = strategy_.facts();
  return (facts.survives || facts.restarts) && epochs() != nullptr;
}

// Returns true if the training goes on after this error.
bool TrainingRun::is_loss(const Error& error) const {
  if (error.kind() == ErrorKind::Timeout) return may_change();
  return error.kind() == ErrorKind::PeerLost && (strategy_.facts().restarts || may_change());
}

// A worker that does not fit, or cannot read its data, ends alone if the others have begun.
void TrainingRun::require_same_fit(bool others_have_begun, const MakePlan& make) {
  if (strategy_.group().world == 1 && !may_change()) return;
  try {
    or_abandon("inspect its data", [&] { fit_plan_ = make(); });
    compare_fits(others_have_begun);
  } catch (const Error& error) {
    if (others_have_begun && epochs() != nullptr) tell_refusal(context_, error.what());
    throw;
  }
}

// If a worker is lost meanwhile, next() decides how the others go on.
void TrainingRun::compare_fits(bool others_have_begun) {
  if (others_have_begun) {
    if (!may_change()) return;
    if (!strategy_.group().is_chief()) return require_told_fit(context_, *epochs(), fit_plan_);
  } else {
    try {
      strategy_.require_same(fit_plan_);
    } catch (const Error& error) {
      if (!may_change() || !is_loss(error)) throw;
      lost(error);
    }
  }
  tell_fit();
}

// For workers that join later. Another launcher may have the list since.
void TrainingRun::tell_fit() const {
  if (may_change() && strategy_.group().is_chief() && !fit_plan_.empty())
    tutti::tell_fit(context_, fit_plan_);
}

// Goes on without a task that was lost, or as planned with other workers, without so many that leave.
void TrainingRun::change(std::optional<Error> why, int leaving) {
  constexpr int kMost = 100;
  if (may_change() && ++changes_in_step_ > kMost && why) throw Error(*why);
  try {
    strategy_.settle();
    if (!why) save_for_others(leaving);
  } catch (const Error& error) {
    if (!why && !is_loss(error)) throw;
    if (!why) why = error;  // after one failure, others are expected
  }
  enter_epoch(why, [&](const std::optional<Error>& reason) {
    if (!strategy_.has_run() || !go_on(reason)) start_again(reason);
    finish_if_ended();
  });
}

// If the workers are outside of the steps, their last fit has ended for all of them.
void TrainingRun::finish_if_ended() {
  if (calls_.has_ended(progress_.fit)) strategy_.finish(progress_);
}

// Another worker was lost at the end of this fit, which the others have left already.
void TrainingRun::leave_fit() {
  calls_.pass_fit(progress_.fit - 1);
  has_ended_ = report_.complete = true;
  is_running_ = false;
  joined_in_ = progress_.fit;
  signals_.reset();
}

// Before a planned change: if the others may not have all of the state then, they go back to this checkpoint.
// If several workers leave, one may have the copy of what another one has. A run whose workers stay has no
// checkpoint here, so it must not change what is trained.
void TrainingRun::save_for_others(int leaving) {
  const StrategyFacts& facts = strategy_.facts();
  const bool others_have_all = facts.survives && (leaving < 2 || facts.keeps_parameters_elsewhere);
  if (!facts.restarts || others_have_all) return;
  strategy_.settle();
  write_checkpoint();
  strategy_.finish_saving(session_);
}

// Leaves the others after a step, because of a signal to this worker alone. Nothing has to be made again.
void TrainingRun::leave(int leaving) {
  save_for_others(leaving);
  session_.finish_saving();
  signals_->forget();
  signals_.reset();
  is_running_ = false;
  throw Interrupted(SIGTERM,
                    fmt::format("stopped by SIGTERM after step {}: the other workers go on", training_.step));
}

// Goes on in the middle of a training, with the state in the memory of the workers. Returns false if too much
// of it is lost.
bool TrainingRun::go_on(const std::optional<Error>& why) {
  is_prepared_ = false;
  if (!go_on_with_others()) return false;
  const Group& group = strategy_.group();
  if (group.is_chief() && !is_chief_) {
    session_.take_over(progress_.step);
    open_files();
  } else if (group.is_chief()) {
    session_.lock();  // again, if somebody has deleted the lock
  }
  is_chief_ = group.is_chief();
  if (is_running_) begin_feed();
  note_change(why);
  return true;
}

// Adds the change that has led to the present epoch to the report, or corrects its step. A worker that was
// not in the epoch before takes over the changes that the others know.
void TrainingRun::add_change() {
  if (epochs() == nullptr || epochs()->change().empty()) return;
  const uint64_t epoch = epochs()->number();
  Json& changes = report_.changes;
  double time = unix_now();
  if (!changes.empty() && changes.back().at("epoch") == epoch) {
    time = changes.back().at("time").get<double>();
    changes.erase(changes.size() - 1);
  }
  changes.push_back({{"step", progress_.step},
                     {"epoch", epoch},
                     {"time", time},
                     {"world", strategy_.group().world},
                     {"why", epochs()->change()}});
}

// Tells the log, and those who follow the run from outside.
void TrainingRun::note_change(const std::optional<Error>& error) {
  const Group& group = strategy_.group();
  report_.world = group.world;
  if (error) context_.log().debug("{}", error->what());
  if (!group.is_chief()) return;
  // Nobody is lost, so nothing else says why.
  if (error && epochs()->change() == comm::kSameWorkers) context_.log().warning("{}", error->what());
  const std::string text = fmt::format("going on at step {} with {} worker{}: {}", progress_.step,
                                       group.world, group.world == 1 ? "" : "s", epochs()->change());
  context_.log().info("{}", text);
  if (!calls_.has_ended(progress_.fit)) session_.note(progress_, RunState::Phase::Training, text);
}

// What this worker has done so far is kept, unless another one is farther: then its state is taken over.
// Returns false if all have to start.
bool TrainingRun::go_on_with_others() {
  if (const auto made = strategy_.complete_step(has_begun_ ? progress_.step : -1)) {
    count_step(*made);
    made_ = made;
  }
  add_change();
  const Strategy::Standing mine = standing();
  auto farther = strategy_.go_on(session_, plan_, joins_ ? nullptr : &mine);
  has_begun_ = !farther || farther->has_begun;
  if (farther && has_begun_) take_over(*std::move(farther));
  remember_parameters();
  return has_begun_;
}

// Begins the run together with the others. If one is lost before all have begun, those that are left begin it
// again, or take over the state of one that has begun.
void TrainingRun::begin_together() {
  bool has_taken_over = false;
  const InEpoch take_over_or_begin = [&](const std::optional<Error>& /*why*/) {
    has_taken_over = strategy_.has_run() && go_on_with_others();
    if (!has_taken_over) begin_run();
  };
  // One was lost before this worker was connected: others may have tried to begin the run without this one.
  const bool is_late = epochs() != nullptr && epochs()->number() > 0 && changes_in_step_ == 0;
  try {
    if (!is_late) return begin_run();
    agree(context_, *strategy_.group().communicator, calls_, plan_, joins_);
    take_over_or_begin({});
  } catch (const Error& error) {
    if (!may_change() || !is_loss(error)) throw;
    enter_epoch(error, take_over_or_begin);
  }
  joined_in_ = progress_.fit;
  const bool is_chief = strategy_.group().is_chief();
  if (!std::exchange(is_chief_, is_chief) && is_chief && has_taken_over) session_.take_over(progress_.step);
}

// Joins the others in the middle of their training. If this worker fails, they go on without it.
void TrainingRun::join() {
  try {
    enter_epoch({}, [&](const std::optional<Error>& /*why*/) {
      if (!strategy_.has_run() || !go_on_with_others()) begin_run();
      finish_if_ended();
    });
  } catch (const Error& error) {
    if (!is_loss(error)) tell_refusal(context_, error.what());
    throw;
  }
  joins_ = false;
  joined_in_ = progress_.fit;
}

void TrainingRun::enter_epoch(std::optional<Error> why, const InEpoch& come_together) {
  tutti::enter_epoch(
      std::move(why), epochs() != nullptr,
      [this](const std::optional<Error>& reason) {
        strategy_.regroup(reason);
        add_change();  // the next loss may come before the others know it
      },
      [&](const std::optional<Error>& reason) {
        if (epochs() == nullptr) return come_together(reason);
        agree(context_, *strategy_.group().communicator, calls_, plan_, joins_);
        come_together(reason);
        tell_fit();
      });
}

Strategy::Standing TrainingRun::standing() {
  progress_.stop_reason = training_.stop_reason;
  return {.progress = progress_,
          .last = last_step_,
          .is_told = is_told_,
          .hooks_told = static_cast<int64_t>(hooks_told_),
          .metrics = report_.metrics,
          .changes = report_.changes,
          .has_begun = has_begun_};
}

void TrainingRun::take_over(Strategy::Standing standing) {
  progress_ = std::move(standing.progress);
  last_step_ = std::move(standing.last);
  is_told_ = standing.is_told;
  hooks_told_ = static_cast<size_t>(standing.hooks_told);
  for (const auto& [name, value] : standing.metrics) report_.metrics[name] = value;
  report_.changes = std::move(standing.changes);
  found_ = std::move(standing.more);
  hooks_are_stale_ = true;
  for (const auto& [name, part] : parts_) restore_part(name, part.restore);
  made_.reset();
  if (!is_running_) return;  // begin_steps() does the rest
  training_.step = progress_.step;
  training_.last_step = is_told_ ? progress_.step : progress_.step - 1;
  training_.stop_reason = progress_.stop_reason;
  if (!is_told_) made_ = last_step_;
  restore_hooks();
}

}  // namespace tutti
