#pragma once

#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "tests/chaos/small_disk.h"
#include "tests/launchers/hosts.h"
#include "tests/tool.h"

namespace tutti::testing {

// How a job is started: one launcher on each node.
struct JobSetting {
  Words launch;   // flags of `tutti run`
  Words program;  // with its flags
  size_t nodes = 1;
  const TwoHosts* hosts = nullptr;  // of the two nodes; null: they are processes of this machine
  const SmallDisk* disk = nullptr;  // that all tasks use
  std::string timeout = "5";        // of launchers (TUTTI_TIMEOUT)
  Words environment = {};
};

// A job that is disturbed: its launchers, which can be started again, and all their processes, which have a
// mark. When it is destroyed, none of them is left.
class ChaosJob {
 public:
  ChaosJob(JobSetting setting, const std::string& name);
  ~ChaosJob();
  ChaosJob(const ChaosJob&) = delete;
  ChaosJob& operator=(const ChaosJob&) = delete;

  size_t nodes() const { return setting_.nodes; }
  // Starts the launcher of a node that has none, or whose launcher has ended.
  void start(size_t node);
  // Reads what all launchers have printed.
  void read();
  // Returns true if there is no launcher of this node.
  bool has_ended(size_t node = 0) const;
  // Waits for its end. Returns the exit code.
  int wait(size_t node = 0);
  // Returns 0 if there is none.
  pid_t launcher(size_t node = 0) const;
  // Returns the tasks "worker" or "ps" that run; with an index only this one.
  std::vector<pid_t> tasks(const std::string& kind) const;
  std::vector<pid_t> tasks(const std::string& kind, int index) const;
  std::vector<pid_t> processes() const { return processes_with(mark_); }
  // Sends a signal. Returns false if there is no such process.
  bool strike(pid_t pid, int signal);
  void continue_stopped();
  // Kills all processes of the job at once.
  void kill_all();
  std::string err(size_t node = 0) const { return launchers_.at(node)->err(); }

 private:
  const JobSetting setting_;
  const std::string mark_;
  const int port_;
  std::vector<std::unique_ptr<RunningProgram>> launchers_;
};

}  // namespace tutti::testing
