// Jobs whose workers change while they train (`tutti run --min`).
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/together.h"
#include "tests/tool.h"

namespace tutti::testing {

// Takes the flags of `tutti run`, and then the flags of the program.
inline Flags changing_job(int workers, const Flags& launch, const Flags& flags) {
  Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers)};
  command = with(with(command, launch), {"--", together_program(), "--threads", "1"});
  return with(command, flags);
}

struct Outcome {
  ProgramResult result;
  nlohmann::json report;
  std::string sha256() const { return report.value("weights_sha256", "there is none"); }
};

// Runs such a job, which must succeed.
inline Outcome run_changing(const TestFolder& folder, int workers, const Flags& launch, const Flags& flags) {
  const std::string report = folder / "report.json";
  std::filesystem::remove(report);
  Outcome outcome{
      run_program(changing_job(workers, launch, with(flags, {"--report", report})), {}, Crashes::AskedFor),
      {}};
  EXPECT_EQ(outcome.result.exit_code, 0) << outcome.result.out << outcome.result.err;
  if (outcome.result.exit_code == 0) outcome.report = json_of(report);
  return outcome;
}

}  // namespace tutti::testing
