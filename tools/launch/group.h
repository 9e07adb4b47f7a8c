#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/core.h>

#include "tools/launch/job_mark.h"
#include "tools/launch/member.h"
#include "tools/launch/output.h"
#include "tools/launch/signal_pipe.h"
#include "tutti/base/environment.h"

namespace tutti {

// What a task has to do with the others. Whoever is no worker has all cores, since it works while the workers
// wait, and is what they come back to.
enum class Part { Worker, Server, Master };

// A process that is to be one task: what it is called, and the variables that tell it so.
struct TaskPlan {
  std::string name;  // "worker/2"
  std::map<std::string, std::string> variables;
  Part part = Part::Worker;
};

struct GroupOptions {
  int restarts =
      0;  // of single tasks that have failed, in all; after that the group ends with the first failure
  std::chrono::milliseconds failure_grace{2000};  // from SIGTERM to SIGKILL after a task has failed
  std::chrono::milliseconds interrupt_grace{
      10000};  // the same after a signal from the user: time for a checkpoint
};

// How a whole group ended: the first failure's exit code, or 0.
struct GroupResult {
  int exit_code = 0;
  bool interrupted = false;  // by a signal to this process
};

// The processes of one job on this machine, from start to end. They are all gone when run() returns or
// throws, and so is whatever they started.
class Group {
 public:
  Group(std::vector<std::string> command, const Environment& environment, std::vector<TaskPlan> tasks,
        SignalPipe& signals, const JobMark& mark, const GroupOptions& options = {});
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

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
  void take_signals();
  void interrupt(int signal);
  void lose_output();
  void reap();
  void take_failed();
  bool may_be_a_consequence() const;
  void report(const Member& member);
  bool restart(Member& member);
  bool job_is_done() const;
  void end_idle_servers();
  void stop(int signal, std::chrono::milliseconds grace);
  void end_strays();
  bool anyone_running() const;
  void signal_all(int signal) const;

  const std::vector<std::string> command_;
  const std::map<std::string, std::string> environment_;
  const std::vector<TaskPlan> tasks_;
  const GroupOptions options_;
  SignalPipe& signals_;
  const JobMark& mark_;

  Output out_{STDOUT_FILENO};
  Output err_{STDERR_FILENO};
  std::vector<Member> members_;
  std::vector<Member*> failed_;  // the most telling first; what follows from that is not decided yet
  std::optional<Clock::time_point> failed_at_;  // the first of them
  std::optional<Clock::time_point> kill_at_;    // set once the group is being stopped
  int restarts_ = 0;
  std::optional<Clock::time_point> servers_alone_since_;
  bool servers_ended_ = false;  // by us: how is no matter
  GroupResult result_;
};

}  // namespace tutti
