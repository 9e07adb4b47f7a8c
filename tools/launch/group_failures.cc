// The part of a TaskGroup that handles tasks which have ended: it starts them again, goes on without them, or
// fails.
#include <algorithm>
#include <signal.h>
#include <sys/wait.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/group.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// TF_CONFIG may put the chief into a separate job.
bool is_chief(const TaskPlan& task) {
  if (task.role != TaskRole::Worker) return false;
  return task.name == "worker/0" || task.name == "chief/0" || task.name == "master/0";
}

// When the job is done: returns true for a task that was restarted and waited for tasks that had ended.
bool waited_in_vain(const Member& member) {
  return member.before() && member.outcome()->exit_code() == exit_code(ErrorKind::Timeout);
}

bool has_own_error(const Outcome& outcome) {
  return !outcome.killed() && !outcome.interrupted() && outcome.weight() > Outcome::kComplaint;
}

}  // namespace

// Handles all processes that have ended. Failed tasks are restarted if that is allowed.
void TaskGroup::reap() {
  take_children();
  survive();
  if (failed_.empty() || may_be_a_consequence()) return;
  failed_at_.reset();
  for (Member* failed : std::exchange(failed_, {})) {
    if (result_.exit_code != 0) return;
    if (!restart(*failed)) fail_with(*failed);
  }
}

// Ends the group because of this task.
void TaskGroup::fail_with(const Member& member) {
  const bool hides_error = job_is_done() && waited_in_vain(member) && has_own_error(*member.before());
  result_.exit_code = (hides_error ? member.before() : member.outcome())->exit_code();
  const bool as_told = result_.interrupted && member.outcome()->killed();
  if (!as_told) report(member);
  const Survival* const survival = options_.survival;
  if (!kill_at_) stop(SIGTERM, survival != nullptr ? survival->failure_grace() : options_.failure_grace);
}

void TaskGroup::take_children() {
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED); pid > 0;
       pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) {
    const auto member = std::find_if(members_.begin(), members_.end(),
                                     [&](const Member& m) { return m.running() && m.pid() == pid; });
    const bool stopped = WIFSTOPPED(status);
    if (pid == watch_.guardian()) {
      stopped ? watch_.continue_guardian() : replace_guardian();
    } else if (member == members_.end()) {
      continue;  // a grandchild whose parent ended before it
    } else if (stopped) {
      say("{} (pid {}) was stopped by {}; continue it with kill -CONT {}", member->task(), pid,
          signal_name(WSTOPSIG(status)), pid);
    } else {
      handle_ended(*member, status);
    }
  }
}

void TaskGroup::handle_ended(Member& member, int status) {
  member.ended(Outcome(status));
  member.finish_output();
  if (member.is_host() && member.reported_end()) member.ended(Outcome::exited(*member.reported_end()));
  if (member.is_host() && !member.reported_end()) lose_host(member, status);
  if (member.is_host() && !kill_at_ && goes_on_without_host(member)) return;
  if (may_go_on_without(member) || servers_ended_ || member.outcome()->success()) return;
  if (role_of(member) == TaskRole::Evaluator) return lose_evaluator(member);
  add_failure(member);
}

void TaskGroup::add_failure(Member& member) {
  failed_.push_back(&member);
  if (!failed_at_) failed_at_ = Clock::now();
  std::stable_sort(failed_.begin(), failed_.end(), [](const Member* one, const Member* other) {
    return one->outcome()->weight() > other->outcome()->weight();
  });
}

// A host launcher that has ended without a report, or the connection to it.
void TaskGroup::lose_host(Member& member, int status) {
  member.ended(Outcome::exited(exit_code(ErrorKind::PeerLost)));
  if (kill_at_) return;
  say("host {}: the connection to its launcher was lost after {:.1f} s: the process that held it (pid {}) {}",
      member.task(), member.seconds(), member.pid(), Outcome(status).describe());
}

TaskRole TaskGroup::role_of(const Member& member) const {
  return tasks_[static_cast<size_t>(&member - members_.data())].role;
}

// The training does not need its evaluator. A restarted evaluator continues with the next checkpoint.
void TaskGroup::lose_evaluator(Member& member) {
  if (kill_at_ || evaluator_ended_) return;  // this process has ended it
  report_end(member);
  if (evaluator_restarts_ >= options_.evaluator_restarts) {
    say("{} is lost, and the job goes on without it", member.task());
    return;
  }
  const auto index = static_cast<size_t>(&member - members_.data());
  const std::chrono::seconds pause = pauses_[index].next(std::chrono::duration<double>(member.seconds()));
  say("restarting {}: restart {} of {}{}", member.task(), ++evaluator_restarts_, options_.evaluator_restarts,
      describe_pause(pause));
  start_again(index, pause);
}

void TaskGroup::replace_guardian() {
  try {
    watch_.replace_guardian();
    say("the guardian process was killed; a new one has been started");
  } catch (const Error& error) {
    say("the guardian process was killed and cannot be restarted: if this process is killed by kill -9, its "
        "tasks continue to run. {}",
        error.what());
  }
}

// A task often notices that another task is gone before that task's process has ended. The output of the task
// that is gone explains the cause, so the failure of a task that only lost another one waits a second for it.
bool TaskGroup::may_be_a_consequence() const {
  constexpr milliseconds kTimeToEnd{1000};
  return failed_.front()->outcome()->weight() == Outcome::kComplaint && anyone_running() && !kill_at_ &&
         !may_restart(*failed_.front()) && Clock::now() < *failed_at_ + kTimeToEnd;
}

// Survival decides which workers are started again, if they go on without one another.
bool TaskGroup::may_restart(const Member& member) const {
  const bool is_decided = options_.survival != nullptr && role_of(member) == TaskRole::Worker;
  return restarts_ < options_.restarts && !is_decided;
}

// Restarts a failed task, since the other tasks wait for it. There are two exceptions: if the chief has
// stopped in good order, it has ended the run and also the servers; and when the job is done, a restarted
// task would have nothing to do. Returns false if the task counts as a failure.
bool TaskGroup::restart(Member& member) {
  if (kill_at_ || result_.interrupted || !may_restart(member)) return false;
  const auto index = static_cast<size_t>(&member - members_.data());
  if (job_is_done()) return is_excused(member);
  if (is_chief(tasks_[index]) && member.outcome()->interrupted()) {
    say("{} is not restarted: it received a stop signal and ended the run", member.task());
    return false;
  }
  report(member);
  if (kill_stopped_for(member)) {
    say("restarting {}, which does not count as a restart", member.task());
    start_again(index, std::chrono::seconds(0));
    return true;
  }
  const std::chrono::seconds pause = pauses_[index].next(std::chrono::duration<double>(member.seconds()));
  say("restarting {}: restart {} of {}{}", member.task(), ++restarts_, options_.restarts,
      describe_pause(pause));
  start_again(index, pause);
  return true;
}

// When the job is done: a server that is lost, or a restarted task whose wait has timed out, does not count
// as a failure, unless the task has failed before with another error.
bool TaskGroup::is_excused(const Member& member) {
  say("{} is not restarted: the job is done", member.task());
  return role_of(member) == TaskRole::Server || (waited_in_vain(member) && !has_own_error(*member.before()));
}

// If the task's wait for other tasks has timed out because some are stopped (SIGSTOP), kills the stopped
// tasks, so that they are restarted. Returns true if there are any.
bool TaskGroup::kill_stopped_for(const Member& failed) {
  const int code = failed.outcome()->exit_code();
  if (code != exit_code(ErrorKind::Timeout) && code != exit_code(ErrorKind::PeerLost)) return false;
  bool any = false;
  for (const Member& member : members_) {
    if (!member.running() || role_of(member) == TaskRole::Evaluator) continue;
    const auto process = process_state(member.pid());
    if (!process || process->state != 'T') continue;
    any = true;
    say("{} (pid {}) is stopped, so that {} has waited in vain: killing it", member.task(), member.pid(),
        failed.task());
    member.signal(SIGKILL);
  }
  return any;
}

void TaskGroup::start_again(size_t index, std::chrono::seconds pause) {
  start_at_[index] = Clock::now() + pause;
  start_due();
}

// Restarts the tasks whose pause is over, unless the job has ended without them meanwhile.
void TaskGroup::start_due() {
  for (size_t index = 0; index < tasks_.size(); ++index) {
    if (!start_at_[index] || Clock::now() < *start_at_[index]) continue;
    start_at_[index].reset();
    Member& member = members_[index];
    const bool is_evaluator = tasks_[index].role == TaskRole::Evaluator;
    if (!is_evaluator && job_is_done()) {
      if (!is_excused(member)) fail_with(member);
      continue;
    }
    const std::optional<Outcome> before =
        member.has_started() && !is_evaluator ? member.outcome() : std::nullopt;
    member = start(index);
    say("{} (pid {}) has started", member.task(), member.pid());
    if (before) member.set_before(*before);
  }
}

// Returns true if the chief, which waits for the last update of all others, has ended with 0, or if all
// servers and masters have. Workers that go on without others have no chief: the first of them ends the
// training.
bool TaskGroup::job_is_done() const {
  if (options_.survival != nullptr) return options_.survival->job_is_done();
  bool any = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_chief(tasks_[i])) continue;
    if (!members_[i].running() && members_[i].outcome()->success()) return true;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].role == TaskRole::Worker || tasks_[i].role == TaskRole::Evaluator) continue;
    any = true;
    if (members_[i].running() || !members_[i].outcome()->success()) return false;
  }
  return any;
}

void TaskGroup::report_end(const Member& member) {
  std::string text = fmt::format("{} (pid {}) {} after {:.1f} s", member.task(), member.pid(),
                                 member.outcome()->describe(), member.seconds());
  const bool was_told = member.outcome()->interrupted();
  if (!was_told && !member.last_lines().empty()) {
    text += "; its last lines:";
    for (const std::string& line : member.last_lines()) text += "\n  | " + line;
  }
  say("{}", text);
}

void TaskGroup::report(const Member& member) {
  if (!member.is_host()) report_end(member);
  std::vector<std::string> ended;
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto& outcome = members_[i].outcome();
    if (tasks_[i].role == TaskRole::Worker && members_[i].has_started() && outcome && outcome->success())
      ended.push_back(members_[i].task());
  }
  constexpr size_t kNamed = 8;
  if (!ended.empty())
    say("{} had ended before, with exit code 0", ended.size() > kNamed
                                                     ? fmt::format("{} workers", ended.size())
                                                     : fmt::format("{}", fmt::join(ended, ", ")));
  const auto left =
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.running(); });
  if (left > 0 && !kill_at_ && !may_restart(member))
    say("ending {}{} other {}{}", has_hosts() ? "the tasks on " : "", left, has_hosts() ? "host" : "task",
        left == 1 ? "" : "s");
}

}  // namespace tutti
