// Runs `tutti run` as a user does, for the tests of it.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdlib.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/tool.h"

namespace tutti::testing {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Returns what a worker of members_program.cc prints when it has this life, this rank and as many workers.
inline std::string said_by_member(int worker, int life, int rank, int workers) {
  return fmt::format("worker {}, life {}, rank {} of {}, epoch", worker, life, rank, workers);
}
// Returns the begin of that line, for workers that join together, whose ranks depend on who comes first.
inline std::string begun_by_member(int worker, int life) {
  return fmt::format("worker {}, life {}, rank", worker, life);
}
// Returns the pid in the last of these lines, of which at least one must have been waited for.
inline pid_t pid_of_member(const std::string& out, int worker, int life) {
  pid_t pid = 0;
  for (const std::string& line : lines_of(out)) {
    const size_t at = line.find("pid ");
    const bool is_it = line.find(fmt::format(", worker {}, life {},", worker, life)) != std::string::npos;
    if (is_it) pid = std::stoi(line.substr(at + 4));
  }
  EXPECT_GT(pid, 0) << out;
  return pid;
}

// Runs `tutti run FLAGS -- sh -c SCRIPT`, with a variable of this test in every process.
class Run : public ::testing::Test {
 protected:
  Run() {
    // The test must not depend on this machine's GPUs, nor on the launcher of the test.
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    unsetenv("TF_CONFIG");
  }
  std::vector<std::string> command(std::vector<std::string> flags, const std::string& script) const {
    std::vector<std::string> whole = {program_path("tutti"), "run"};
    whole.insert(whole.end(), flags.begin(), flags.end());
    whole.insert(whole.end(), {"--", "sh", "-c", script});
    return whole;
  }
  ProgramResult run(const std::vector<std::string>& flags, const std::string& script,
                    std::vector<std::string> environment = {}, Crashes crashes = Crashes::Fail) const {
    environment.push_back(mark_);
    return run_program(command(flags, script), environment, crashes);
  }
  // A program to be called in place of ssh (--rsh): the "other host" is this one.
  std::string agent() const {
    std::string path =
        folder_.write("agent", "#!/bin/sh\nexport HOST_OF_AGENT=$1\nshift\nexec sh -c \"$*\"\n");
    std::filesystem::permissions(path, std::filesystem::perms(0700));
    return path;
  }
  bool nobody_is_left() const {
    return eventually([this] { return processes_with(mark_).empty(); });
  }

  TestFolder folder_;
  const std::string mark_ = "MARK_OF_THIS_TEST=" + folder_.path();
};

}  // namespace tutti::testing
