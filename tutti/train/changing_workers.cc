#include <utility>

#include <fmt/format.h>

#include "tutti/comm/communicator.h"
#include "tutti/train/training_run.h"

// The part of TrainingRun in which its workers change while they train (`tutti run --min`).
namespace tutti {

bool TrainingRun::passes_over(int64_t fit) const {
  if (!strategy_.joins()) return false;
  const std::optional<int64_t> others = strategy_.group().communicator->epochs()->fit();
  return others && fit < *others;
}

// Goes on between two calls of the program, after this error or as planned.
void TrainingRun::go_on(const std::optional<Error>& why) {
  const bool was_chief = strategy_.group().is_chief();
  is_prepared_ = has_ended_ = false;
  try {
    strategy_.settle();
  } catch (const Error&) {
    // After one failure, others are expected.
  }
  go_on_with_others(why);
  if (strategy_.group().is_chief() && !was_chief) {
    session_.take_over(progress_.step);
    session_.note(progress_, RunState::Phase::Training);
    open_files();
  }
  begin_feed();
  if (strategy_.group().is_chief())
    context_.log().info("going on at step {} with {} worker{}{}", progress_.step, strategy_.group().world,
                        strategy_.group().world == 1 ? "" : "s", why ? fmt::format(": {}", why->what()) : "");
}

// What this worker has done so far is kept, unless another one is farther: then its state is taken over.
void TrainingRun::go_on_with_others(const std::optional<Error>& why) {
  const Strategy::Standing mine = standing();
  auto farther = strategy_.go_on(session_, plan_, strategy_.joins() ? nullptr : &mine, why);
  if (farther) take_over(*std::move(farther));
}

Strategy::Standing TrainingRun::standing() {
  progress_.stop_reason = training_.stop_reason;
  return {.progress = progress_,
          .last = last_step_,
          .is_told = is_told_,
          .hooks_told = static_cast<int64_t>(hooks_told_),
          .metrics = report_.metrics};
}

void TrainingRun::take_over(Strategy::Standing standing) {
  progress_ = std::move(standing.progress);
  last_step_ = std::move(standing.last);
  is_told_ = standing.is_told;
  hooks_told_ = static_cast<size_t>(standing.hooks_told);
  for (const auto& [name, value] : standing.metrics) report_.metrics[name] = value;
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
