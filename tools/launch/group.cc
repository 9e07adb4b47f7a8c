#include "tools/launch/group.h"

#include <algorithm>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <thread>

#include <fmt/format.h>

#include "tools/launch/cores.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// How often the launcher looks around where nothing wakes it.
constexpr milliseconds kLookAround{500};

template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  write_all(STDERR_FILENO, "tutti run: " + fmt::format(text, std::forward<Args>(args)...) + "\n");
}

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
  return result_;
}

void Group::start_all() {
  for (size_t index = 0; index < tasks_.size(); ++index)
    members_.emplace_back(tasks_[index].name, start_child(command_, options_for(index)));
}

ChildOptions Group::options_for(size_t index) const {
  ChildOptions child;
  std::map<std::string, std::string> variables = environment_;
  for (const auto& [name, value] : tasks_[index].variables) variables[name] = value;
  if (tasks_.size() > 1) {
    child.output = ChildOutput::Capture;
    child.cores = share_of(usable_cores(), static_cast<int>(index), static_cast<int>(tasks_.size()));
    // For programs that are not Tutti's; those find their cores by themselves.
    variables.emplace("OMP_NUM_THREADS", std::to_string(std::max<size_t>(1, child.cores.size())));
  }
  for (const auto& [name, value] : variables) child.environment.push_back(fmt::format("{}={}", name, value));
  child.environment.push_back(mark_.variable());
  return child;
}

void Group::wait_for_all() {
  while (anyone_running()) {
    wait_for_events();
    take_signals();
    for (Member& member : members_) member.pass_on();
    reap();
    if (kill_at_ && Clock::now() >= *kill_at_) signal_all(SIGKILL);
  }
}

void Group::wait_for_events() {
  std::vector<pollfd> events = {{signals_.descriptor(), POLLIN, 0}};
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

// Takes all processes that have ended, and then the most telling failure among them.
void Group::reap() {
  const Member* failed = nullptr;
  int status = 0;
  for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
    const auto member =
        std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.pid() == pid; });
    if (member == members_.end()) continue;  // a grandchild whose parent has ended before it
    member->ended(Outcome(status));
    member->finish_output();
    const int best = failed == nullptr ? 0 : failed->outcome()->weight();
    if (member->outcome()->weight() > best) failed = &*member;
  }
  if (failed == nullptr || result_.exit_code != 0) return;
  result_.exit_code = failed->outcome()->exit_code();
  const bool as_told = result_.interrupted && failed->outcome()->killed();
  if (!as_told) report(*failed);
  if (!kill_at_) stop(SIGTERM, options_.failure_grace);
}

void Group::report(const Member& member) {
  std::string text = fmt::format("{} (pid {}) {} after {:.1f} s", member.task(), member.pid(),
                                 member.outcome()->describe(), member.seconds());
  if (!member.last_lines().empty()) text += "; its last lines:";
  for (const std::string& line : member.last_lines()) text += "\n  | " + line;
  say("{}", text);
  const auto left =
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.running(); });
  if (left > 0 && !kill_at_) say("ending the {} other{}", left, left == 1 ? "" : "s");
}

void Group::stop(int signal, milliseconds grace) {
  kill_at_ = Clock::now() + grace;
  signal_all(signal);
}

// What the tasks have started and left behind is told to end as well, and killed where it does not.
void Group::end_strays() {
  const auto limit = kill_at_.value_or(Clock::now() + options_.failure_grace);
  if (!kill_at_ && mark_.signal_all(SIGTERM) == 0) return;
  while (!mark_.processes().empty()) {
    take_signals();
    if (Clock::now() >= kill_at_.value_or(limit)) mark_.signal_all(SIGKILL);
    for (Member& member : members_) member.pass_on();
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
