#include "tools/launch/group.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/cores.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The interval at which the launcher checks deadlines if no event wakes it.
constexpr milliseconds kLookAround{500};
// The polling interval for processes whose end causes no event.
constexpr milliseconds kMoment{10};
// The time that a host launcher has for its report and its last lines, in addition to the grace time of its
// tasks.
constexpr milliseconds kHostTime{10'000};

// TF_CONFIG may put the chief into a separate job.
bool is_chief(const TaskPlan& task) {
  if (task.role != TaskRole::Worker) return false;
  return task.name == "worker/0" || task.name == "chief/0" || task.name == "master/0";
}

std::vector<TaskPlan> plans_of(const std::vector<StartedHost>& hosts) {
  std::vector<TaskPlan> plans;
  for (const StartedHost& host : hosts) plans.push_back({host.name, {}, TaskRole::Host});
  return plans;
}

// When the job is done: returns true for a task that was restarted and waited for tasks that had ended.
bool waited_in_vain(const Member& member) {
  return member.before() && member.outcome()->exit_code() == exit_code(ErrorKind::Timeout);
}

bool has_own_error(const Outcome& outcome) {
  return !outcome.killed() && !outcome.interrupted() && outcome.weight() > Outcome::kComplaint;
}

}  // namespace

TaskGroup::TaskGroup(std::vector<std::string> command, const Environment& environment,
                     std::vector<TaskPlan> tasks, SignalPipe& signals, JobWatch& watch,
                     const GroupOptions& options)
    : command_(std::move(command)),
      environment_(environment.variables()),
      tasks_(std::move(tasks)),
      options_(options),
      signals_(signals),
      watch_(watch),
      pauses_(tasks_.size()),
      start_at_(tasks_.size()) {}

TaskGroup::TaskGroup(std::vector<StartedHost> hosts, SignalPipe& signals, JobWatch& watch,
                     const GroupOptions& options)
    : TaskGroup({}, Environment(), plans_of(hosts), signals, watch, options) {
  for (StartedHost& host : hosts) members_.emplace_back(host.name, std::move(host.launcher), out_, err_);
}

TaskGroup::~TaskGroup() {
  watch_.end_all(options_.kill_grace, left_behind_);
  for (const Member& member : members_) {
    if (member.running()) waitpid(member.pid(), nullptr, WNOHANG);
  }
}

GroupResult TaskGroup::run() {
  start_all();
  wait_for_all();
  end_leftover_processes();
  for (Member& member : members_) member.finish_output();
  err_.end_live();
  flush();
  if (const auto end = options_.survival != nullptr ? options_.survival->end() : std::nullopt) {
    result_.restarts = end->restarts + restarts_;
    result_.comes_again = end->comes_again;
  }
  return result_;
}

// Waits for a slow reader of the output, such as a pager, without a time limit; a signal ends the wait.
void TaskGroup::flush() {
  while (!out_.empty() || !err_.empty()) {
    wait_for_events();
    pass_on_output();
    if (options_.orders != nullptr && options_.orders->next()) return;
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;
      result_.interrupted = true;
      return;
    }
    if (result_.interrupted && Clock::now() >= *kill_at_) return;
  }
}

void TaskGroup::start_all() {
  for (size_t index = members_.size(); index < tasks_.size(); ++index) {
    const bool is_later = tasks_[index].role == TaskRole::Worker && options_.survival != nullptr &&
                          !options_.survival->begins_with(worker_of(index));
    members_.push_back(is_later ? Member(tasks_[index].name, Child(), out_, err_) : start(index));
  }
}

Member TaskGroup::start(size_t index) {
  return {tasks_[index].name, start_child(command_, options_for(index)), out_, err_};
}

ChildOptions TaskGroup::options_for(size_t index) const {
  ChildOptions child;
  std::map<std::string, std::string> variables = environment_;
  for (const auto& [name, value] : tasks_[index].variables) variables[name] = value;
  if (tasks_.size() > 1 || options_.orders != nullptr) {
    child.output = ChildOutput::Capture;
    child.cores = cores_of(index);
    // For programs that do not use Tutti; others determine their cores themselves.
    variables.emplace("OMP_NUM_THREADS", std::to_string(std::max<size_t>(1, child.cores.size())));
  }
  if (options_.survival != nullptr && tasks_[index].role == TaskRole::Worker)
    options_.survival->add_variables(worker_of(index), variables);
  for (const auto& [name, value] : variables) child.environment.push_back(fmt::format("{}={}", name, value));
  child.ignored_signal = signals_.preempt();
  watch_.enrol(child);
  return child;
}

// Workers get equal shares of the cores, and so does an evaluator if there are enough of them.
std::vector<int> TaskGroup::cores_of(size_t index) const {
  const auto count_before = [&](size_t end, TaskRole role) {
    return std::count_if(tasks_.begin(), tasks_.begin() + static_cast<int64_t>(end),
                         [role](const TaskPlan& task) { return task.role == role; });
  };
  const std::vector<int> cores = usable_cores();
  const auto workers = count_before(tasks_.size(), TaskRole::Worker);
  const auto all = workers + count_before(tasks_.size(), TaskRole::Evaluator);
  const auto shares = static_cast<int64_t>(cores.size()) >= all ? all : workers;
  const bool is_worker = tasks_[index].role == TaskRole::Worker;
  if (!is_worker && (tasks_[index].role != TaskRole::Evaluator || shares == workers)) return cores;
  const auto place =
      is_worker ? count_before(index, TaskRole::Worker) : workers + count_before(index, TaskRole::Evaluator);
  return share_of(cores, static_cast<int>(place), static_cast<int>(shares));
}

void TaskGroup::wait_for_all() {
  const auto is_due_later = [](const auto& time) { return time.has_value(); };
  while (anyone_running() || std::any_of(start_at_.begin(), start_at_.end(), is_due_later) ||
         waits_for_other_hosts()) {
    wait_for_events();
    handle_signals();
    send_heartbeats();
    pass_on_output();
    reap();
    start_due();
    await_hosts();
    end_idle_servers();
    evict_stopped();
    end_stopped(TaskRole::Worker, workers_stopped_since_);
    end_stopped(TaskRole::Evaluator, evaluator_stopped_since_);
    kill_overdue();
  }
}

void TaskGroup::pass_on_output() {
  for (Member& member : members_) member.pass_on();
  for (Output* output : {&out_, &err_}) output->pass_on();
  const int error = out_.error() != 0 ? out_.error() : err_.error();
  if (error != 0 && !std::exchange(result_.lost_output, true))
    say("the output of the tasks cannot be written ({}): it is lost, and the job goes on", errno_text(error));
}

void TaskGroup::wait_for_events() {
  std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
  for (const Output* output : {&out_, &err_}) {
    if (!output->empty()) events.push_back({output->descriptor(), POLLOUT, 0});
  }
  for (const Member& member : members_) {
    for (const int descriptor : member.descriptors()) events.push_back({descriptor, POLLIN, 0});
  }
  if (options_.orders != nullptr) events.push_back({options_.orders->descriptor(), POLLIN, 0});
  milliseconds timeout = options_.survival != nullptr ? options_.survival->look_again() : kLookAround;
  const auto wake_at = [&](const std::optional<Clock::time_point>& time) {
    if (time) timeout = std::min(timeout, std::chrono::ceil<milliseconds>(*time - Clock::now()));
  };
  wake_at(kill_at_);
  for (const auto& time : start_at_) wake_at(time);
  timeout = std::max(timeout, milliseconds(1));
  poll(events.data(), events.size(), static_cast<int>(timeout.count()));
}

void TaskGroup::handle_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    if (*signal != SIGCHLD) interrupt(*signal);
  }
  if (options_.orders == nullptr) return;
  while (const std::optional<Order> order = options_.orders->next()) obey(*order);
}

// The launcher that gave the order has already printed a message.
void TaskGroup::obey(const Order& order) {
  result_.interrupted = true;
  if (order.signal == SIGKILL) {
    kill_at_ = Clock::now();
  } else if (!kill_at_) {
    stop(order.signal, order.grace);
    signal_all(SIGCONT);
  }
}

void TaskGroup::send_heartbeats() {
  if (!has_hosts() || Clock::now() < heartbeat_ + kHeartbeatInterval) return;
  heartbeat_ = Clock::now();
  for (const Member& member : members_) member.send(kHeartbeat);
}

// Passes the first signal on, and gives the tasks time to end in good order. A second signal, or a signal
// while the group is ending anyway, kills them; but not SIGHUP, which is sent twice when a terminal is
// closed.
void TaskGroup::interrupt(int signal) {
  if (signal == signals_.preempt()) {
    if (kill_at_ || leave_with_workers()) return;
    say("received {}, which counts as SIGTERM (--preempt-signal)", signal_name(signal));
    interrupt(SIGTERM);
  } else if (signal == SIGPIPE) {
    lose_output();
  } else if (kill_at_ && signal == SIGHUP) {
    result_.interrupted = true;
  } else if (kill_at_) {
    result_.interrupted = true;
    say("received {} again: killing the remaining tasks", signal_name(signal));
    said_that_it_kills_ = true;
    kill_at_ = Clock::now();
    if (has_hosts()) stop(SIGKILL, milliseconds(0));
  } else {
    result_.interrupted = true;
    say("passed {} on to the tasks, which have {} s to end; a second signal kills them", signal_name(signal),
        std::chrono::duration_cast<std::chrono::seconds>(options_.interrupt_grace).count());
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (start_at_[i] && tasks_[i].role != TaskRole::Evaluator) result_.exit_code = 128 + signal;
    }
    stop(signal, options_.interrupt_grace);
    // A stopped task must run to act on the signal, since the others wait for it to save together.
    signal_all(SIGCONT);
  }
}

// The reader of this process's output is gone, as with `| head`.
void TaskGroup::lose_output() {
  if (kill_at_) return;
  result_ = {128 + SIGPIPE, true};
  stop(SIGTERM, options_.interrupt_grace);
}

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

// Servers end by themselves after a program has used them. This ends servers that were not used.
void TaskGroup::end_idle_servers() {
  constexpr milliseconds kTimeToEnd{5000};
  if (kill_at_) return;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].role != TaskRole::Server && will_run(i)) return;
  }
  if (!servers_alone_since_) servers_alone_since_ = Clock::now();
  if (Clock::now() - *servers_alone_since_ < kTimeToEnd || !anyone_running()) return;
  servers_ended_ = true;
  stop(SIGTERM, options_.failure_grace);
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

bool TaskGroup::has_hosts() const { return !tasks_.empty() && tasks_.front().role == TaskRole::Host; }

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

void TaskGroup::stop(int signal, milliseconds grace) {
  if (options_.survival != nullptr)
    options_.survival->stop({.exit_code = result_.exit_code,
                             .signal = signal,
                             .grace = grace,
                             .interrupted = result_.interrupted});
  kill_at_ = Clock::now() + grace;
  drop_restarts();
  start_at_.assign(tasks_.size(), std::nullopt);
  if (!has_hosts()) return signal_all(signal);
  *kill_at_ += kHostTime;
  for (const Member& member : members_) member.send(to_line(Order{signal, grace}));
}

// A worker or an evaluator that is stopped when the job is done would prevent the job from ending. Nothing is
// done as long as another task of the same role runs.
void TaskGroup::end_stopped(TaskRole role, std::optional<Clock::time_point>& since) {
  std::vector<Member*> stopped;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].role != role || !members_[i].running()) continue;
    const auto process = process_state(members_[i].pid());
    if (kill_at_ || !process || process->state != 'T' || !job_is_done()) {
      since.reset();
      return;
    }
    stopped.push_back(&members_[i]);
  }
  if (stopped.empty()) return;
  if (!since) since = Clock::now();
  if (Clock::now() - *since < options_.stopped_grace) return;
  for (const Member* member : stopped) {
    say("{} (pid {}) is still stopped, but the job is done: killing it", member->task(), member->pid());
    member->signal(SIGKILL);
  }
  evaluator_ended_ = evaluator_ended_ || role == TaskRole::Evaluator;
  since.reset();
}

// SIGKILL does not end a process that waits in the kernel, for example for a file server or a driver that
// does not answer.
void TaskGroup::kill_overdue() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  if (result_.interrupted && !std::exchange(said_that_it_kills_, true)) {
    for (const Member& member : members_) {
      if (member.running()) say("{} (pid {}) did not end in time: killing it", member.task(), member.pid());
    }
  }
  signal_all(SIGKILL);
  if (Clock::now() < *kill_at_ + options_.kill_grace) return;
  for (Member& member : members_) {
    if (!member.running()) continue;
    leave_behind(member.task(), member.pid(), "did not end after SIGKILL");
    member.ended(Outcome(SIGKILL));
  }
  if (result_.exit_code == 0) result_.exit_code = 128 + SIGKILL;
}

void TaskGroup::leave_behind(const std::string& who, pid_t pid, std::string_view why) {
  left_behind_.push_back(pid);
  result_.left_behind = true;
  const auto process = process_state(pid);
  const char state = process ? process->state : '?';
  say("{} (pid {}) {} and is left behind (state {}{}{})", who, pid, why, state, wait_channel(pid),
      state == 'D' ? ": it waits for a file server, a disk or a driver" : "");
}

// Ends the processes that tasks have started and not ended, and kills them if they do not end.
void TaskGroup::end_leftover_processes() {
  const auto limit = kill_at_.value_or(Clock::now() + options_.failure_grace);
  ask_strays_to_end();
  for (auto left = watch_.living(left_behind_); !left.empty(); left = watch_.living(left_behind_)) {
    handle_signals();
    const auto kill_at = kill_at_.value_or(limit);
    if (Clock::now() >= kill_at) watch_.kill_all(left_behind_);
    if (Clock::now() >= kill_at + options_.kill_grace) {
      for (const ProcessState& process : left)
        leave_behind(process.name, process.pid, "was started by a task, did not end after SIGKILL");
    }
    pass_on_output();
    take_children();
    std::this_thread::sleep_for(kMoment);
  }
  take_children();  // the last of them may be zombies
}

void TaskGroup::ask_strays_to_end() {
  for (const ProcessState& process : watch_.living(left_behind_)) {
    if (send_signal(process, SIGTERM) != EPERM || watch_.reaches_all()) continue;
    leave_behind(process.name, process.pid, "was started by a task, belongs to another user");
  }
}

bool TaskGroup::anyone_running() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.running(); });
}

void TaskGroup::signal_all(int signal) const {
  // Host launchers pass on signals (stop()); for SIGKILL the connection is closed.
  if (has_hosts() && signal != SIGKILL) return;
  for (const Member& member : members_) member.signal(signal);
}

}  // namespace tutti
