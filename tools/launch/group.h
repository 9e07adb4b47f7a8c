#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "tools/launch/discovery.h"
#include "tools/launch/host_link.h"
#include "tools/launch/job_watch.h"
#include "tools/launch/member.h"
#include "tools/launch/output.h"
#include "tools/launch/restart_pause.h"
#include "tools/launch/signal_pipe.h"
#include "tools/launch/survival.h"
#include "tutti/base/environment.h"
#include "tutti/base/log.h"

namespace tutti {

// The role of a task. Servers and masters may use all cores, since they work while the workers wait; they
// keep the state with which a restarted worker continues. The other tasks do not need an evaluator: the job
// continues if it fails, and waits for it at the end. A Host is not a task but the host launcher of several
// tasks.
enum class TaskRole { Worker, Server, Master, Evaluator, Host };

// A process to be started for one task, and the variables that tell it which task it is.
struct TaskPlan {
  std::string name;  // "worker/2"
  std::map<std::string, std::string> variables;
  TaskRole role = TaskRole::Worker;
  // A worker's rank for programs that use torch.distributed, which has no ranks that change (--min). Programs
  // that use Tutti read the variables above first.
  std::map<std::string, std::string> torch_variables = {};
};

// A host whose host launcher has received its job.
struct StartedHost {
  std::string name;
  Child launcher;
};

// Tries to start the launcher of a host again, without waiting for it. Called again and again until it
// returns the launcher.
using HostAgain = std::function<std::optional<StartedHost>(size_t host, const Survival::Say& say)>;

struct GroupOptions {
  // The maximum number of restarts of single tasks after a failure, for all tasks together. One more failure
  // ends the group.
  int restarts = 0;
  int evaluator_restarts = 0;  // the same for the evaluator alone, whose failures do not end the group
  std::chrono::milliseconds failure_grace = kFailureGrace;
  // The time from the user's signal to SIGKILL, for writing a checkpoint.
  std::chrono::milliseconds interrupt_grace = kSavingGrace;
  // The time from the end of the job to SIGKILL for a worker or an evaluator that is stopped (SIGSTOP).
  std::chrono::milliseconds stopped_grace{5000};
  // The time from SIGKILL until the launcher stops waiting for a process that hangs in the kernel.
  std::chrono::milliseconds kill_grace{10'000};
  bool is_live = false;  // shows a line of a task that changes in place (base/live_line.h)
  // In a host launcher: the name of the host for messages, and the orders of the launcher that has started
  // this process.
  std::string host = {};
  LauncherOrders* orders = nullptr;
  // Not null: the workers go on without workers that are lost. `restarts` is for the servers then.
  Survival* survival = nullptr;
  // With a group of hosts: called when the launcher of a host has ended by itself. Returns true if the job
  // goes on without the host. {}: it does not.
  std::function<bool(size_t host)> goes_on_without_host = {};
  HostAgain host_again = {};  // for a host that was lost; {}: it stays away
  // Called again and again: returns the hosts that are to leave, and those that are to be started by
  // host_again. {}: the hosts stay the same.
  std::function<HostPlaces::Changes(const Survival::Say& say)> discover = {};
};

// The result of a whole group: the exit code of the first failure, or 0.
struct GroupResult {
  int exit_code = 0;
  bool interrupted = false;  // by a signal to this process
  bool left_behind = false;  // a process that SIGKILL does not end still exists
  bool lost_output = false;  // text of the tasks could not be written
  bool refused = false;      // the others have taken in no worker of this launcher, which came again
  bool comes_again = false;  // this launcher was on its way to the others, and tries anew
  int restarts = 0;          // of single workers that count as restarts of the whole job do (--min)
};

// The processes of one job on this machine. When run() returns or throws, these processes and all that they
// have started are gone, except for processes that SIGKILL does not end, which are named on stderr.
class TaskGroup {
 public:
  // The references must outlive the group.
  TaskGroup(std::vector<std::string> command, const Environment& environment, std::vector<TaskPlan> tasks,
            SignalPipe& signals, JobWatch& watch, const GroupOptions& options = {});
  // A group of hosts. It passes its orders on to their launchers, which report for themselves.
  TaskGroup(std::vector<StartedHost> hosts, SignalPipe& signals, JobWatch& watch,
            const GroupOptions& options = {});
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  GroupResult run();

 private:
  using Clock = std::chrono::steady_clock;

  void start_all();
  Member start(size_t index);
  ChildOptions options_for(size_t index) const;
  std::vector<int> cores_of(size_t index) const;
  void wait_for_all();
  void wait_for_events();
  void pass_on_output();
  void flush();
  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args);
  void handle_signals();
  void interrupt(int signal);
  void obey(const Order& order);
  void send_heartbeats();
  void lose_output();
  bool has_hosts() const;
  void end_idle_servers();
  void end_stopped(TaskRole role, std::optional<Clock::time_point>& since);
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_overdue();
  void end_leftover_processes();
  void ask_strays_to_end();
  void leave_behind(const std::string& who, pid_t pid, std::string_view why);
  // group_failures.cc
  void reap();
  void take_children();
  void handle_ended(Member& member, int status);
  void add_failure(Member& member);
  void lose_evaluator(Member& member);
  void lose_host(Member& member, int status);
  void replace_guardian();
  bool may_be_a_consequence() const;
  bool may_restart(const Member& member) const;
  void report(const Member& member);
  void report_end(const Member& member);
  TaskRole role_of(const Member& member) const;
  bool restart(Member& member);
  void start_again(size_t index, std::chrono::seconds pause);
  void start_due();
  bool is_excused(const Member& member);
  bool kill_stopped_for(const Member& failed);
  void fail_with(const Member& member);
  bool job_is_done() const;
  // group_survival.cc
  int worker_of(size_t index) const;
  size_t index_of(int worker) const;
  size_t index_of_first_worker() const;
  bool may_go_on_without(Member& member);
  bool goes_on_without_host(const Member& member);
  void discover_hosts();
  void await_hosts();
  void survive();
  void carry_out(const WorkerOrder& order);
  void end_with_job();
  bool waits_for_other_hosts() const;
  void evict_stopped();
  bool leave_with_workers();
  void drop_restarts();
  void drop_restart(size_t index);
  bool anyone_running() const;
  bool will_run(size_t index) const { return members_[index].running() || start_at_[index]; }
  void signal_all(int signal) const;

  const std::vector<std::string> command_;
  const std::map<std::string, std::string> environment_;
  const std::vector<TaskPlan> tasks_;
  const GroupOptions options_;
  SignalPipe& signals_;
  JobWatch& watch_;

  Output err_{STDERR_FILENO, options_.is_live};
  Output own_out_{STDOUT_FILENO};
  // In a terminal with a live line, one output has all lines, since only it knows of that line.
  Output& out_ = err_.shares_terminal(own_out_) ? err_ : own_out_;
  std::vector<Member> members_;
  std::map<size_t, Clock::time_point> stopped_since_;  // workers, by task
  std::set<size_t> awaited_hosts_;                     // that were lost and are to be started again
  std::set<size_t> returned_hosts_;                    // that were started again
  std::set<size_t> unlisted_hosts_;                    // that are to leave, or have left
  std::vector<Member*> failed_;  // not handled yet; the one that explains most about the cause is first
  std::optional<Clock::time_point> failed_at_;  // time of the first failure in failed_
  std::optional<Clock::time_point> kill_at_;    // set when the group is being stopped
  int restarts_ = 0;
  std::vector<RestartPause> pauses_;                        // by task
  std::vector<std::optional<Clock::time_point>> start_at_;  // by task: when a failed task is restarted
  std::optional<Clock::time_point> servers_alone_since_;
  bool servers_ended_ = false;  // by this process, so that their exit codes are ignored
  std::optional<Clock::time_point> workers_stopped_since_;
  std::optional<Clock::time_point> evaluator_stopped_since_;
  int evaluator_restarts_ = 0;
  bool evaluator_ended_ = false;  // by this process
  bool said_that_it_kills_ = false;
  Clock::time_point heartbeat_ = Clock::now();  // time of the last one
  std::vector<pid_t> left_behind_;
  GroupResult result_;
};

template <class... Args>
void TaskGroup::say(fmt::format_string<Args...> text, Args&&... args) {
  const std::string place = options_.host.empty() ? "" : " on " + options_.host;
  err_.add(time_of_day() + " tutti run" + place + ": " + fmt::format(text, std::forward<Args>(args)...) +
           "\n");
  err_.pass_on();
}

}  // namespace tutti
