#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/job.h"
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

// Returns a job that does the same without a launcher.
inline Job on_workers(int workers, const Flags& flags) {
  Job job{{}, with({together_program(), "--threads", "1"}, flags)};
  if (workers > 1) job.tasks = {{"worker", workers}};
  return job;
}

// Runs the job, which must succeed, and returns its report. Removes an earlier report first.
inline nlohmann::json report_of(Job job, const TestFolder& folder) {
  const std::string report = folder / "report.json";
  std::filesystem::remove(report);
  job.program = with(job.program, {"--report", report});
  const ProgramResult result = run_job(job);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.exit_code == 0 ? json_of(report) : nlohmann::json();
}
inline nlohmann::json report_of(const Flags& command, const TestFolder& folder) {
  return report_of(Job{{}, command}, folder);
}

template <class JobOrCommand>
std::string hash_of(const JobOrCommand& job, const TestFolder& folder) {
  return report_of(job, folder).value("weights_sha256", "there is none");
}

}  // namespace tutti::testing
