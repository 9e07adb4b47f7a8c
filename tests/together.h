#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tool.h"

namespace tutti::testing {

using Flags = Words;
inline Flags with(const Flags& flags, const Flags& more) { return flags + more; }

inline std::string together_program() { return program_path("../test/together_program"); }

inline nlohmann::json json_of(const std::string& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

// Returns the command that trains with this number of workers.
inline std::vector<std::string> training(int workers, const std::vector<std::string>& flags) {
  std::vector<std::string> command;
  if (workers > 1) command = {program_path("tutti"), "run", "-n", std::to_string(workers), "--"};
  command.insert(command.end(), {together_program(), "--threads", "1"});
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

// Runs the command, which must succeed, and returns its report. Removes an earlier report first.
inline nlohmann::json report_of(const Flags& command, const TestFolder& folder) {
  const std::string report = folder / "report.json";
  std::filesystem::remove(report);
  const ProgramResult result = run_program(with(command, {"--report", report}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.exit_code == 0 ? json_of(report) : nlohmann::json();
}

inline std::string hash_of(const Flags& command, const TestFolder& folder) {
  return report_of(command, folder).value("weights_sha256", "there is none");
}

}  // namespace tutti::testing
