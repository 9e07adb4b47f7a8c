#pragma once

#include <optional>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/together.h"

// Helpers to start jobs with servers.
namespace tutti::testing {

// Returns the command that trains with this number of servers and workers, under the launcher.
inline Flags served(int servers, int workers, const Flags& flags, const Flags& launcher = {}) {
  Flags command = {program_path("tutti"),   "run", "--ps",
                   std::to_string(servers), "-n",  std::to_string(workers)};
  command = with(command, launcher);
  return with(with(command, {"--", together_program(), "--threads", "1"}), flags);
}

// Returns a job that does the same without a launcher.
inline Job on_servers(int servers, int workers, const Flags& flags) {
  return {{{"ps", servers}, {"worker", workers}}, with({together_program(), "--threads", "1"}, flags)};
}

// Returns a job with a master and this number of passive workers.
inline Job with_master(int workers, const Flags& flags) {
  return {{{"master", 1}, {"worker", workers}},
          with({together_program(), "--threads", "1", "--strategy", "in-graph"}, flags)};
}

// A job under the launcher that runs for a while; all its processes have a mark.
class ServedRun {
 public:
  ServedRun(const std::string& name, const Flags& command)
      : mark_(fmt::format("TUTTI_TEST_MARK={}-{}", getpid(), name)), run_(command, {mark_}) {}

  RunningProgram& run() { return run_; }
  // Kills a task with SIGKILL. Returns false if it does not run.
  bool try_to_kill(const std::string& job, int index) const {
    const auto all =
        processes_with(Words{mark_, "TUTTI_JOB_NAME=" + job, "TUTTI_TASK_INDEX=" + std::to_string(index)});
    return !all.empty() && ::kill(all.front(), SIGKILL) == 0;
  }
  void kill(const std::string& job, int index) const {
    EXPECT_TRUE(try_to_kill(job, index)) << "there is no " << job << "/" << index;
  }

 private:
  const std::string mark_;
  RunningProgram run_;
};

}  // namespace tutti::testing
