// How a TaskGroup goes on without workers that are lost (`tutti run --min`).
#include <algorithm>
#include <signal.h>
#include <utility>

#include <fmt/format.h>

#include "tools/launch/group.h"
#include "tools/launch/survival.h"
#include "tutti/base/error.h"

namespace tutti {

// The numbers of the workers of this group in the job are in the order of its tasks, among which may be
// servers.
int TaskGroup::worker_of(size_t index) const {
  return options_.survival->first_worker() + static_cast<int>(index - index_of_first_worker());
}

size_t TaskGroup::index_of(int worker) const {
  return index_of_first_worker() + static_cast<size_t>(worker - options_.survival->first_worker());
}

size_t TaskGroup::index_of_first_worker() const {
  const auto first = std::find_if(tasks_.begin(), tasks_.end(),
                                  [](const TaskPlan& task) { return task.role == TaskRole::Worker; });
  return static_cast<size_t>(first - tasks_.begin());
}

// Called when the process of a task has ended. Returns true if survive() is to handle it: the others may go
// on.
bool TaskGroup::may_go_on_without(Member& member) {
  Survival* const survival = options_.survival;
  if (survival == nullptr || role_of(member) != TaskRole::Worker) return false;
  survival->ended({.worker = worker_of(static_cast<size_t>(&member - members_.data())),
                   .outcome = *member.outcome(),
                   .text = fmt::format("{} (pid {}) {} after {:.1f} s", member.task(), member.pid(),
                                       member.outcome()->describe(), member.seconds()),
                   .seconds = member.seconds()});
  return !kill_at_ || member.outcome()->success();
}

// The launcher of a host has ended by itself. It is started again, unless it was told to end. If its first
// launcher fails by itself, as without PROGRAM, so would another one.
bool TaskGroup::goes_on_without_host(const Member& member) {
  const auto host = static_cast<size_t>(&member - members_.data());
  const auto& end = member.reported_end();
  const bool is_lost = !end || *end == exit_code(ErrorKind::PeerLost) || returned_hosts_.contains(host);
  const bool was_told = end && member.outcome()->interrupted();
  if (!is_lost && !was_told) return false;
  if (!options_.goes_on_without_host || !options_.goes_on_without_host(host))
    return options_.survival != nullptr && options_.survival->job_is_done() &&
           (was_told || returned_hosts_.contains(host));
  const bool stays_away = was_told || unlisted_hosts_.contains(host) || !options_.host_again;
  if (!stays_away) awaited_hosts_.insert(host);
  return true;
}

// A host that is listed no more is told to end as by SIGTERM to its launcher: its workers leave after a step.
void TaskGroup::discover_hosts() {
  if (!options_.discover) return;
  const HostPlaces::Changes changes = options_.discover([this](const std::string& text) { say("{}", text); });
  for (const size_t host : changes.leave) {
    say("host {} is listed no more: its workers leave after a step", members_[host].task());
    members_[host].send(to_line(Order{SIGTERM, options_.interrupt_grace}));
    awaited_hosts_.erase(host);
    unlisted_hosts_.insert(host);
  }
  for (const size_t host : changes.stay)
    say("host {} is listed no more, but its workers stay until enough workers of other hosts train",
        members_[host].task());
  for (const std::string& host : changes.left_out)
    say("host {} is listed, but not used: the places of all workers (--max) have other hosts", host);
  for (const auto& [host, what] : changes.come) {
    say("host {} is listed: starting {} worker{} there", what.host, what.slots, what.slots == 1 ? "" : "s");
    awaited_hosts_.insert(host);
    unlisted_hosts_.erase(host);
  }
}

void TaskGroup::await_hosts() {
  const bool is_over = kill_at_ || (options_.survival != nullptr && options_.survival->job_is_done());
  is_over ? awaited_hosts_.clear() : discover_hosts();
  for (const size_t host : std::set<size_t>(awaited_hosts_)) {
    if (members_[host].running()) continue;  // its former launcher ends
    auto started = options_.host_again(host, [this](const std::string& text) { say("{}", text); });
    if (!started) continue;
    say("host {} answers: starting its workers", started->name);
    members_[host] = Member(started->name, std::move(started->launcher), out_, err_);
    awaited_hosts_.erase(host);
    returned_hosts_.insert(host);
  }
}

void TaskGroup::survive() {
  Survival* const survival = options_.survival;
  if (survival == nullptr) return;
  for (const WorkerOrder& order : survival->look([this](const std::string& text) { say("{}", text); }))
    carry_out(order);
  if (survival->job_is_done()) drop_restarts();
  end_with_job();
}

void TaskGroup::carry_out(const WorkerOrder& order) {
  const size_t index = index_of(order.worker);
  Member& member = members_.at(index);
  switch (order.what) {
    case WorkerOrder::What::Start:
      if (kill_at_) return options_.survival->stays_away(order.worker);
      return start_again(index, order.pause);
    case WorkerOrder::What::Kill:
      say("{} (pid {}) does not answer the other workers: killing it", member.task(), member.pid());
      return member.signal(SIGKILL);
    case WorkerOrder::What::Leave:
      if (start_at_[index]) return drop_restart(index);
      member.signal(SIGTERM);
      return member.signal(SIGCONT);
    case WorkerOrder::What::Fail:
      return add_failure(member);
    case WorkerOrder::What::Refuse:
      say("the others have taken in no worker of this host, and go on without it");
      result_.refused = true;
      return add_failure(member);
  }
}

// Does as the launcher that decides for all hosts says.
void TaskGroup::end_with_job() {
  const std::optional<JobEnd> end = options_.survival->end();
  if (!end || kill_at_ || !failed_.empty()) return;  // a failure of this group is told first
  if (result_.exit_code == 0) result_.exit_code = end->exit_code;
  if (end->signal == 0) return;
  result_.interrupted = result_.interrupted || end->interrupted;
  stop(end->signal, end->grace);
  signal_all(SIGCONT);
}

bool TaskGroup::waits_for_other_hosts() const {
  const Survival* const survival = options_.survival;
  if (survival == nullptr || survival->is_over()) return false;
  return !kill_at_ || Clock::now() < *kill_at_;
}

// A worker that is stopped cannot say that it waits for another one, which then waits for ever. A server that
// is stopped cannot answer anybody.
void TaskGroup::evict_stopped() {
  const Survival* const survival = options_.survival;
  if (survival == nullptr || kill_at_) return;
  std::vector<size_t> stopped;
  bool others_run = survival->has_other_hosts();
  for (size_t i = 0; i < members_.size(); ++i) {
    const bool is_server = tasks_[i].role == TaskRole::Server;
    if ((tasks_[i].role != TaskRole::Worker && !is_server) || !members_[i].running()) continue;
    const auto process = process_state(members_[i].pid());
    const bool is_stopped = process && process->state == 'T';
    others_run = others_run || (!is_stopped && !is_server);
    if (is_stopped) stopped.push_back(i);
  }
  std::erase_if(stopped_since_, [&](const auto& entry) {
    return std::find(stopped.begin(), stopped.end(), entry.first) == stopped.end();
  });
  for (const size_t i : stopped) {
    const auto [since, is_new] = stopped_since_.emplace(i, Clock::now());
    if (!others_run || Clock::now() - since->second < survival->timeout()) continue;
    say("{} (pid {}) is stopped, and the workers need it: killing it", members_[i].task(), members_[i].pid());
    members_[i].signal(SIGKILL);
  }
}

void TaskGroup::drop_restart(size_t index) {
  start_at_[index].reset();
  options_.survival->stays_away(worker_of(index));
}

// The machine is about to be taken away. Returns true if the job goes on, with the list of its workers at
// this launcher, but without the workers of this machine.
bool TaskGroup::leave_with_workers() {
  if (options_.survival == nullptr || !options_.survival->dismiss_own_workers()) return false;
  say("received {}: the workers of this host leave after a step", signal_name(signals_.preempt()));
  return true;
}

// The other workers have ended the training, or the job is being ended.
void TaskGroup::drop_restarts() {
  if (options_.survival == nullptr) return;
  for (size_t index = 0; index < tasks_.size(); ++index) {
    if (tasks_[index].role != TaskRole::Worker || !start_at_[index]) continue;
    drop_restart(index);
    if (!kill_at_) say("{} is not restarted: the job is done", members_[index].task());
  }
}

}  // namespace tutti
