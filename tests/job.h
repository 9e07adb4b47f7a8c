// Jobs whose tasks are started by the test and not by `tutti run`.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/tool.h"
#include "tutti/base/ports.h"

namespace tutti::testing {

// Names such as "ps", "master" and "worker", each with its number of tasks.
using Tasks = std::vector<std::pair<std::string, int>>;

// A job whose processes are started one by one, as at terminals.
class Terminals {
 public:
  Terminals(int servers, int workers) : Terminals({{"ps", servers}, {"worker", workers}}) {}
  // Takes the jobs and their numbers of tasks. If `known` names a task, only this task has a known port, and
  // the others have port 0.
  explicit Terminals(const Tasks& jobs, const std::string& known = "") {
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
  Words task(const std::string& job, int index) const {
    return {"--cluster_spec", spec_, "--job_name", job, "--task_index", std::to_string(index)};
  }
  std::unique_ptr<RunningProgram> start(const std::string& job, int index, const Words& flags,
                                        const Words& program = {program_path("../test/together_program"),
                                                                "--threads", "1"}) const {
    return std::make_unique<RunningProgram>(program + flags + task(job, index));
  }

 private:
  std::string spec_;
};

// A program and the tasks that run it. Takes much less time than a job of `tutti run` if the program can be
// forked (RunningProgram).
struct Job {
  Tasks tasks;  // none: the program runs alone
  Words program;
};

// Runs all tasks to their ends. Returns the output of the chief, and the exit code and the errors of the
// first task that has failed.
inline ProgramResult run_job(const Job& job) {
  if (job.tasks.empty()) return run_program(job.program);
  const Terminals terminals(job.tasks);
  std::vector<std::unique_ptr<RunningProgram>> all;
  std::vector<std::string> names;
  for (const auto& [name, count] : job.tasks) {
    for (int index = 0; index < count; ++index) {
      all.push_back(terminals.start(name, index, {}, job.program));
      names.push_back(name);
    }
  }
  ProgramResult result;
  bool is_chief = true;  // of the tasks that are not servers, the first
  for (size_t i = 0; i < all.size(); ++i) {
    const int code = all[i]->wait();
    if (names[i] != "ps" && std::exchange(is_chief, false)) result.out = all[i]->out();
    if (code == 0 || result.exit_code != 0) continue;
    result.exit_code = code;
    result.err = all[i]->err();
  }
  return result;
}

}  // namespace tutti::testing
