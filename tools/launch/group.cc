#include "tools/launch/group.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <utility>

#include <fmt/format.h>

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

std::vector<TaskPlan> plans_of(const std::vector<StartedHost>& hosts) {
  std::vector<TaskPlan> plans;
  for (const StartedHost& host : hosts) plans.push_back({host.name, {}, TaskRole::Host});
  return plans;
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
  if (options_.survival == nullptr)
    for (const auto& [name, value] : tasks_[index].torch_variables) variables[name] = value;
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
    say("passed {} on to the tasks, which have {:g} s to end; a second signal kills them",
        signal_name(signal), std::chrono::duration<double>(options_.interrupt_grace).count());
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

bool TaskGroup::has_hosts() const { return !tasks_.empty() && tasks_.front().role == TaskRole::Host; }

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
