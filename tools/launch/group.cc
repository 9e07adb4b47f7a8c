#include "tools/launch/group.h"

#include <algorithm>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <thread>

#include <fmt/format.h>

#include "tools/launch/cores.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// How often the launcher looks around where nothing wakes it.
constexpr milliseconds kLookAround{500};

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace

Group::Group(std::vector<std::string> command, const Environment& environment, std::vector<TaskPlan> tasks,
             SignalPipe& signals, const JobMark& mark, const GroupOptions& options)
    : command_(std::move(command)),
      environment_(environment.variables()),
      tasks_(std::move(tasks)),
      options_(options),
      signals_(signals),
      mark_(mark) {}

Group::~Group() {
  signal_all(SIGKILL);
  while (mark_.signal_all(SIGKILL) > 0) std::this_thread::sleep_for(milliseconds(10));
  for (const Member& member : members_) {
    if (member.running()) waitpid(member.pid(), nullptr, 0);
  }
}

GroupResult Group::run() {
  start_all();
  wait_for_all();
  end_strays();
  for (Member& member : members_) member.finish_output();
  flush();
  return result_;
}

// Whoever reads what this process prints may take all the time, as with a pager; a signal ends the wait.
void Group::flush() {
  while (!out_.empty() || !err_.empty()) {
    wait_for_events();
    pass_on_output();
    while (const std::optional<int> signal = signals_.next()) {
      if (*signal == SIGCHLD) continue;
      result_.interrupted = true;
      return;
    }
    if (result_.interrupted && Clock::now() >= *kill_at_) return;
  }
}

template <class... Args>
void Group::say(fmt::format_string<Args...> text, Args&&... args) {
  err_.add("tutti run: " + fmt::format(text, std::forward<Args>(args)...) + "\n");
  err_.pass_on();
}

void Group::start_all() {
  for (size_t index = 0; index < tasks_.size(); ++index) members_.push_back(start(index));
}

Member Group::start(size_t index) {
  return {tasks_[index].name, start_child(command_, options_for(index)), out_, err_};
}

ChildOptions Group::options_for(size_t index) const {
  ChildOptions child;
  std::map<std::string, std::string> variables = environment_;
  for (const auto& [name, value] : tasks_[index].variables) variables[name] = value;
  if (tasks_.size() > 1) {
    child.output = ChildOutput::Capture;
    child.cores = cores_of(index);
    // For programs that are not Tutti's; those find their cores by themselves.
    variables.emplace("OMP_NUM_THREADS", std::to_string(std::max<size_t>(1, child.cores.size())));
  }
  for (const auto& [name, value] : variables) child.environment.push_back(fmt::format("{}={}", name, value));
  child.environment.push_back(mark_.variable());
  return child;
}

// Workers share them evenly.
std::vector<int> Group::cores_of(size_t index) const {
  if (tasks_[index].part != Part::Worker) return usable_cores();
  const auto is_worker = [](const TaskPlan& task) { return task.part == Part::Worker; };
  const auto place = std::count_if(tasks_.begin(), tasks_.begin() + static_cast<int64_t>(index), is_worker);
  const auto workers = std::count_if(tasks_.begin(), tasks_.end(), is_worker);
  return share_of(usable_cores(), static_cast<int>(place), static_cast<int>(workers));
}

void Group::wait_for_all() {
  while (anyone_running()) {
    wait_for_events();
    take_signals();
    pass_on_output();
    reap();
    end_idle_servers();
    if (kill_at_ && Clock::now() >= *kill_at_) signal_all(SIGKILL);
  }
}

void Group::pass_on_output() {
  for (Member& member : members_) member.pass_on();
  for (Output* output : {&out_, &err_}) output->pass_on();
}

void Group::wait_for_events() {
  std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
  for (const Output* output : {&out_, &err_}) {
    if (!output->empty()) events.push_back({output->descriptor(), POLLOUT, 0});
  }
  for (const Member& member : members_) {
    for (const int descriptor : member.descriptors()) events.push_back({descriptor, POLLIN, 0});
  }
  milliseconds timeout = kLookAround;
  if (kill_at_) {
    const auto left = std::chrono::ceil<milliseconds>(*kill_at_ - Clock::now());
    timeout = std::clamp(left, milliseconds(1), kLookAround);
  }
  poll(events.data(), events.size(), static_cast<int>(timeout.count()));
}

void Group::take_signals() {
  while (const std::optional<int> signal = signals_.next()) {
    if (*signal != SIGCHLD) interrupt(*signal);
  }
}

// The first is passed on and leaves time to end well; another, or one while the group is ending anyway,
// kills.
void Group::interrupt(int signal) {
  if (signal == SIGPIPE) {
    lose_output();
  } else if (kill_at_) {
    result_.interrupted = true;
    say("{} again: killing the tasks that are left", signal_name(signal));
    kill_at_ = Clock::now();
  } else {
    result_.interrupted = true;
    say("{}: passed on to the tasks, which have {} s to end; once more kills them", signal_name(signal),
        std::chrono::duration_cast<std::chrono::seconds>(options_.interrupt_grace).count());
    stop(signal, options_.interrupt_grace);
  }
}

// The reader of our own output is gone, as with `| head`.
void Group::lose_output() {
  if (kill_at_) return;
  result_ = {128 + SIGPIPE, true};
  stop(SIGTERM, options_.interrupt_grace);
}

// Takes all processes that have ended; those that have failed are started again, as long as that is allowed.
void Group::reap() {
  take_failed();
  if (failed_.empty() || may_be_a_consequence()) return;
  failed_at_.reset();
  for (Member* failed : std::exchange(failed_, {})) {
    if (result_.exit_code != 0) return;
    if (restart(*failed)) continue;
    result_.exit_code = failed->outcome()->exit_code();
    const bool as_told = result_.interrupted && failed->outcome()->killed();
    if (!as_told) report(*failed);
    if (!kill_at_) stop(SIGTERM, options_.failure_grace);
  }
}

void Group::take_failed() {
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
    const auto member = std::find_if(members_.begin(), members_.end(),
                                     [&](const Member& m) { return m.running() && m.pid() == pid; });
    if (member == members_.end()) continue;  // a grandchild whose parent has ended before it
    member->ended(Outcome(status));
    member->finish_output();
    if (servers_ended_ || member->outcome()->success()) continue;
    failed_.push_back(&*member);
    if (!failed_at_) failed_at_ = Clock::now();
  }
  std::stable_sort(failed_.begin(), failed_.end(), [](const Member* one, const Member* other) {
    return one->outcome()->weight() > other->outcome()->weight();
  });
}

// That somebody else is gone is often seen before that one has ended: it still closes its files. What it says
// then is what the user wants to read.
bool Group::may_be_a_consequence() const {
  constexpr milliseconds kTimeToEnd{1000};
  return failed_.front()->outcome()->weight() == Outcome::kComplaint && anyone_running() && !kill_at_ &&
         restarts_ >= options_.restarts && Clock::now() < *failed_at_ + kTimeToEnd;
}

// They end by themselves where they were used; where the program has not, nobody tells them.
void Group::end_idle_servers() {
  constexpr milliseconds kTimeToEnd{5000};
  if (kill_at_) return;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].part != Part::Server && members_[i].running()) return;
  }
  if (!servers_alone_since_) servers_alone_since_ = Clock::now();
  if (Clock::now() - *servers_alone_since_ < kTimeToEnd || !anyone_running()) return;
  servers_ended_ = true;
  stop(SIGTERM, options_.failure_grace);
}

// The others wait for it. At the end of a job there is nobody to wait, and nothing to come back to: that a
// server is lost then, or that one has come back and waited in vain, is no failure.
bool Group::restart(Member& member) {
  if (kill_at_ || result_.interrupted || restarts_ >= options_.restarts) return false;
  const auto index = static_cast<size_t>(&member - members_.data());
  if (job_is_done()) {
    say("{} is not started again: the job is done", member.task());
    return tasks_[index].part == Part::Server ||
           (member.came_back() && member.outcome()->exit_code() == exit_code(ErrorKind::Timeout));
  }
  report(member);
  say("{} is started again: restart {} of {}", member.task(), ++restarts_, options_.restarts);
  member = start(index);
  member.set_came_back();
  return true;
}

// The chief has ended well, who waits for everybody's last update; or servers and master have.
bool Group::job_is_done() const {
  bool any = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].name == "worker/0" && !members_[i].running() && members_[i].outcome()->success())
      return true;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (tasks_[i].part == Part::Worker) continue;
    any = true;
    if (members_[i].running() || !members_[i].outcome()->success()) return false;
  }
  return any;
}

void Group::report(const Member& member) {
  std::string text = fmt::format("{} (pid {}) {} after {:.1f} s", member.task(), member.pid(),
                                 member.outcome()->describe(), member.seconds());
  if (!member.last_lines().empty()) text += "; its last lines:";
  for (const std::string& line : member.last_lines()) text += "\n  | " + line;
  say("{}", text);
  const auto left =
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.running(); });
  if (left > 0 && !kill_at_ && restarts_ >= options_.restarts)
    say("ending the {} other{}", left, left == 1 ? "" : "s");
}

void Group::stop(int signal, milliseconds grace) {
  kill_at_ = Clock::now() + grace;
  signal_all(signal);
}

// What the tasks have started and left behind is told to end as well, and killed where it does not.
void Group::end_strays() {
  const auto limit = kill_at_.value_or(Clock::now() + options_.failure_grace);
  if (mark_.signal_all(SIGTERM) == 0) return;
  while (!mark_.processes().empty()) {
    take_signals();
    if (Clock::now() >= kill_at_.value_or(limit)) mark_.signal_all(SIGKILL);
    pass_on_output();
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
}

bool Group::anyone_running() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.running(); });
}

void Group::signal_all(int signal) const {
  for (const Member& member : members_) member.signal(signal);
}

}  // namespace tutti
