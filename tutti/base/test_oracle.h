#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/environment.h"
#include "tutti/base/test_run.h"

namespace tutti {

// For tests: an independent reader or another implementation: a script in tests/oracles, run by the Python in
// TUTTI_TEST_PYTHON, which scripts/test-python installs.
struct OracleAnswer {
  int status = 0;
  std::string output;  // stdout and stderr
};

inline bool has_oracles() { return Environment::of_process().has("TUTTI_TEST_PYTHON"); }

inline std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Runs a script, which is named as seen from the top folder.
inline OracleAnswer run_script(const std::string& python, const std::string& script,
                               const std::vector<std::string>& arguments) {
  std::string command = shell_quoted(python) + " " + shell_quoted(source_path(script));
  for (const std::string& argument : arguments) command += " " + shell_quoted(argument);
  OracleAnswer answer;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {.status = -1, .output = "popen failed"};
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) answer.output.append(buffer, got);
  answer.status = ::pclose(pipe);
  return answer;
}

inline OracleAnswer ask_oracle(const std::string& script, const std::vector<std::string>& arguments) {
  return run_script(*Environment::of_process().get("TUTTI_TEST_PYTHON"), "tests/oracles/" + script,
                    arguments);
}

}  // namespace tutti

// To be used at the beginning of a test that needs an oracle.
#define TUTTI_NEEDS_ORACLES()  \
  if (!::tutti::has_oracles()) \
  GTEST_SKIP()                 \
      << "TUTTI_TEST_PYTHON is not set: not compared with the independent reader. See scripts/test-python"
