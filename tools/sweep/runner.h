#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "tools/launch/job_watch.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output.h"
#include "tools/launch/restart_pause.h"
#include "tools/launch/signal_pipe.h"
#include "tools/sweep/plan.h"
#include "tools/sweep/results.h"
#include "tutti/base/environment.h"
#include "tutti/base/file.h"

namespace tutti {

struct SweepOptions {
  std::string folder;
  std::vector<SweepSetting> settings;
  std::vector<RunValues> runs;
  SweepGoal goal;
  bool halving = false;
  int64_t least_steps = 1;        // of every run, with halving
  int slots = 1;                  // runs at the same time
  int restarts = 3;               // of each run, after it was killed or has lost a task
  std::string command_line = {};  // that continues this sweep, for a message; "": none
  // The time from SIGTERM to SIGKILL after a signal to this process, for writing checkpoints.
  std::chrono::milliseconds interrupt_grace{30'000};
};

// Runs one program with different values of its flags, several at a time, each with a separate log directory
// in the sweep's folder:
//   run-07/report.json, run-07/output.log   of one run; the log has stdout and stderr of all its starts
//   sweep.json, sweep.csv                   the results so far
//   best                                    a link to the best run
//   plot.svg                                the curves of the best runs, at the end
// Which runs a stage continues depends on their results only, not on when they end. The processes are gone
// when run() returns or throws, and are killed if this process dies.
class Sweep {
 public:
  // Continues the sweep in the folder, if there is one. Throws InvalidArgument if it is another one, or if
  // another process works on it.
  Sweep(std::vector<std::string> command, const Environment& environment, SweepOptions options);
  ~Sweep();
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // Returns the exit code: the exit code of the first failed run (1 if it ended without a result), 128 + the
  // number of a signal to this process, or 0.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Running {
    size_t run = 0;  // the number of runs: the process checks flags
    size_t slot = 0;
    pid_t pid = -1;
    Stage stage;
    Clock::time_point started;
  };

  // A failed run, which is restarted at this time.
  struct Restart {
    size_t run = 0;
    Stage stage;
    Clock::time_point at;
  };

  void continue_sweep();
  void check_flags();
  Json configuration(size_t run);
  std::vector<size_t> best_at(const Stage& former, size_t count) const;
  void train_all(const std::vector<size_t>& runs, const Stage& stage);
  void start(size_t run, const Stage& stage);
  void start_due();
  bool has_free_slot() const { return running_.size() < static_cast<size_t>(options_.slots); }
  pid_t start_process(size_t slot, std::vector<std::string> arguments, const std::string& log);
  std::vector<std::string> arguments_of(size_t run) const;
  std::optional<Outcome> await(pid_t pid);
  void wait_for_events();
  void handle_signals();
  void reap();
  void handle_ended(const Running& ended, const Outcome& outcome);
  void handle_stop(size_t run, const Stop& stop);
  void require_value_in_reports();
  void handle_failure(const Running& ended, const Outcome& outcome);
  void give_up(size_t run, int code, const std::string& why);
  void stop_all();
  void write_results();
  void link_best();
  void draw_plot();
  void say(const std::string& text);
  std::string name_of(const Running& running) const;
  std::string path_of(size_t run, const std::string& file = "") const;

  const std::vector<std::string> command_;
  const Environment environment_;
  const SweepOptions options_;
  const FileDescriptor lock_;
  SweepResults results_;
  std::vector<Stage> stages_;

  Output err_;
  SignalPipe signals_;
  JobWatch watch_;
  std::vector<Running> running_;
  std::vector<int> restarts_;         // of each run, by this process
  std::vector<RestartPause> pauses_;  // by run
  std::vector<Restart> failed_;       // runs that wait for their restarts
  std::optional<int> signal_;         // that this process has received
  std::optional<Clock::time_point> kill_at_;
  std::optional<std::pair<pid_t, Outcome>> ended_check_;
  int exit_code_ = 0;
};

}  // namespace tutti
