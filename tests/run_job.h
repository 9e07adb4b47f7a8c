// Runs `tutti run` as a user does, for the tests of it.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdlib.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tool.h"

namespace tutti::testing {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
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
