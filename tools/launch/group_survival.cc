// How a TaskGroup goes on without workers that are lost (`tutti run --min`).
#include <algorithm>
#include <signal.h>
#include <utility>

#include <fmt/format.h>

#include "tools/launch/group.h"
#include "tools/launch/survival.h"

namespace tutti {
namespace {

std::string describe_rest(const Survival& survival) {
  const MembersKeeper& keeper = survival.keeper();
  if (keeper.finished()) return "it was no longer needed";
  const int left = keeper.left();
  if (left >= survival.options().min)
    return fmt::format("the other {} {} on", left, left == 1 ? "goes" : "go");
  return fmt::format("{} of {} workers {} left and {} for others to come back", left,
                     survival.options().workers, left == 1 ? "is" : "are", left == 1 ? "waits" : "wait");
}

}  // namespace

// Called when the process of a task has ended. Returns true if survive() is to handle it: the others may go
// on.
bool TaskGroup::may_go_on_without(Member& member) {
  Survival* const survival = options_.survival;
  if (survival == nullptr || role_of(member) != TaskRole::Worker) return false;
  const auto worker = static_cast<int>(&member - members_.data());
  const Outcome& outcome = *member.outcome();
  if (outcome.success()) {
    survival->ended_well(worker);
    return true;
  }
  if (!kill_at_ && survival->may_lose(worker, outcome)) {
    lost_.push_back(&member);
    return true;
  }
  survival->lose(worker, MembersKeeper::Then::StaysAway);
  if (!kill_at_) survival->finish(fmt::format("{} {}", member.task(), outcome.describe()));
  return false;
}

// Handles workers that are lost, and what the others call.
void TaskGroup::survive() {
  Survival* const survival = options_.survival;
  if (survival == nullptr) return;
  const std::vector<Member*> lost = std::exchange(lost_, {});
  std::vector<bool> was_member;
  int restarts = survival->restarts_left();
  for (const Member* member : lost) {
    const auto worker = static_cast<int>(member - members_.data());
    was_member.push_back(survival->keeper().trained_last(worker));
    const bool may_return = !kill_at_ && !survival->keeper().finished() && !member->outcome()->interrupted();
    const bool again = may_return && restarts-- > 0;
    survival->lose(worker, again ? MembersKeeper::Then::ComesBack : MembersKeeper::Then::StaysAway);
  }
  survival->look();
  const MembersKeeper& keeper = survival->keeper();
  for (size_t i = 0; i < lost.size(); ++i) {
    const bool ends_job = keeper.ended() && (was_member[i] || !keeper.finished());
    ends_job ? add_failure(*lost[i]) : go_on_without(*lost[i]);
  }
  if (!lost.empty() && keeper.ended() && !keeper.finished())
    say("the job ends: {}", keeper.epochs().back().end);
  for (const comm::Member& joined : survival->take_joined()) {
    const int workers = keeper.left();
    say("worker/{} has come back: {} {} on", joined.worker, workers, workers == 1 ? "goes" : "go");
  }
  for (const comm::Member& evicted : survival->take_evicted()) {
    const Member& member = members_[static_cast<size_t>(evicted.worker)];
    say("{} (pid {}) does not answer the other workers: killing it", member.task(), member.pid());
    member.signal(SIGKILL);
  }
  if (keeper.finished()) drop_restarts();
}

// After the last step nobody takes the place of a worker that is lost: what only it was to do, such as
// writing the report, is undone.
void TaskGroup::look_for_undone() {
  Survival* const survival = options_.survival;
  if (survival == nullptr || result_.exit_code != 0 || result_.interrupted) return;
  uint64_t last = 0;
  for (const comm::Members& epoch : survival->keeper().epochs()) {
    if (epoch.end.empty()) last = epoch.epoch;
  }
  if (last == 0 || survival->has_entered(last)) return;
  result_.exit_code = exit_code(ErrorKind::PeerLost);
  say("a worker was lost when the others needed it no more: what it had to do alone, such as writing files, "
      "may be undone");
}

// A worker that is stopped cannot say that it waits for another one, which then waits for ever.
void TaskGroup::evict_stopped() {
  const Survival* const survival = options_.survival;
  if (survival == nullptr || kill_at_) return;
  std::vector<size_t> stopped;
  bool others_run = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].role != TaskRole::Worker || !members_[i].running()) continue;
    const auto process = process_state(members_[i].pid());
    const bool is_stopped = process && process->state == 'T';
    others_run = others_run || !is_stopped;
    if (is_stopped) stopped.push_back(i);
  }
  std::erase_if(stopped_since_, [&](const auto& entry) {
    return std::find(stopped.begin(), stopped.end(), entry.first) == stopped.end();
  });
  for (const size_t i : stopped) {
    const auto [since, is_new] = stopped_since_.emplace(i, Clock::now());
    if (!others_run || Clock::now() - since->second < survival->options().timeout) continue;
    say("{} (pid {}) is stopped, and the other workers need it: killing it", members_[i].task(),
        members_[i].pid());
    members_[i].signal(SIGKILL);
  }
}

void TaskGroup::go_on_without(Member& member) {
  Survival& survival = *options_.survival;
  const std::string text =
      fmt::format("{} (pid {}) {} after {:.1f} s; {}", member.task(), member.pid(),
                  member.outcome()->describe(), member.seconds(), describe_rest(survival));
  const auto index = static_cast<size_t>(&member - members_.data());
  if (!survival.keeper().comes_back(static_cast<int>(index))) return say("{}", text);
  const std::chrono::seconds pause = pauses_[index].next(std::chrono::duration<double>(member.seconds()));
  say("{}; restarting it: restart {} of {}{}", text, survival.use_restart(static_cast<int>(index)),
      survival.options().restarts, describe_pause(pause));
  start_again(index, pause);
}

// The other workers have ended the training, or the job is being ended.
void TaskGroup::drop_restarts() {
  if (options_.survival == nullptr) return;
  for (size_t index = 0; index < tasks_.size(); ++index) {
    if (tasks_[index].role != TaskRole::Worker || !start_at_[index]) continue;
    start_at_[index].reset();
    options_.survival->lose(static_cast<int>(index), MembersKeeper::Then::StaysAway);
    if (!kill_at_) say("{} is not restarted: the job is done", members_[index].task());
  }
}

}  // namespace tutti
