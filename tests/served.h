#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/together.h"
#include "tutti/base/ports.h"

// Helpers to start jobs with servers.
namespace tutti::testing {

// Returns the command that trains with this number of servers and workers, under the launcher.
inline Flags served(int servers, int workers, const Flags& flags, const Flags& launcher = {}) {
  Flags command = {program_path("tutti"),   "run", "--ps",
                   std::to_string(servers), "-n",  std::to_string(workers)};
  command = with(command, launcher);
  return with(with(command, {"--", together_program(), "--threads", "1"}), flags);
}

// A job whose processes are started one by one, as at terminals.
class Terminals {
 public:
  Terminals(int servers, int workers) : Terminals({{"ps", servers}, {"worker", workers}}) {}
  // Takes the jobs and their numbers of tasks. If `known` names a task, only this task has a known port, and
  // the others have port 0.
  explicit Terminals(const std::vector<std::pair<std::string, int>>& jobs, const std::string& known = "") {
    int tasks = 0;
    for (const auto& [job, count] : jobs) tasks += count;
    const std::vector<int> ports = free_ports(tasks);
    auto port = ports.begin();
    for (const auto& [job, count] : jobs) {
      spec_ += fmt::format("{}{}|", spec_.empty() ? "" : ",", job);
      for (int index = 0; index < count; ++index, ++port) {
        const bool is_known = known.empty() || known == fmt::format("{}/{}", job, index);
        spec_ += fmt::format("{}127.0.0.1:{}", index == 0 ? "" : ";", is_known ? *port : 0);
      }
    }
  }

  const std::string& spec() const { return spec_; }
  Flags task(const std::string& job, int index) const {
    return {"--cluster_spec", spec_, "--job_name", job, "--task_index", std::to_string(index)};
  }
  std::unique_ptr<RunningProgram> start(const std::string& job, int index, const Flags& flags) const {
    return start(job, index, flags, {together_program(), "--threads", "1"});
  }
  std::unique_ptr<RunningProgram> start(const std::string& job, int index, const Flags& flags,
                                        const Flags& program) const {
    return std::make_unique<RunningProgram>(with(with(program, flags), task(job, index)));
  }

 private:
  std::string spec_;
};

// A job under the launcher that runs for a while; all its processes have a mark.
class ServedRun {
 public:
  ServedRun(const std::string& name, const Flags& command)
      : mark_(fmt::format("TUTTI_TEST_MARK={}-{}", getpid(), name)), run_(command, {mark_}) {}

  RunningProgram& run() { return run_; }
  // Kills a task with SIGKILL. Returns false if it does not run.
  bool try_to_kill(const std::string& job, int index) const {
    const auto marked = processes_with(mark_);
    const auto with_job = processes_with("TUTTI_JOB_NAME=" + job);
    for (const pid_t pid : processes_with("TUTTI_TASK_INDEX=" + std::to_string(index))) {
      const auto is_in = [pid](const std::vector<pid_t>& all) {
        return std::find(all.begin(), all.end(), pid) != all.end();
      };
      if (!is_in(marked) || !is_in(with_job)) continue;
      return ::kill(pid, SIGKILL) == 0;
    }
    return false;
  }
  void kill(const std::string& job, int index) const {
    EXPECT_TRUE(try_to_kill(job, index)) << "there is no " << job << "/" << index;
  }

 private:
  const std::string mark_;
  RunningProgram run_;
};

}  // namespace tutti::testing
