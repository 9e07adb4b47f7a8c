// Runs evaluation_program, and reads what it prints.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/together.h"

namespace tutti::testing {

inline std::string evaluation_program() { return program_path("../test/evaluation_program"); }

// Returns the command that runs the program with `tutti run`.
inline Flags evaluated_training(const Flags& launcher, const Flags& flags) {
  return with(with({program_path("tutti"), "run"}, launcher), with({"--", evaluation_program()}, flags));
}

inline std::string output_under(const Flags& launcher, const Flags& flags) {
  const ProgramResult result = run_program(evaluated_training(launcher, flags));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

// Returns what the chief prints in a job without a launcher.
inline std::string output_of(const Tasks& tasks, const Flags& flags) {
  const ProgramResult result = run_job({tasks, with({evaluation_program()}, flags)});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  return result.out;
}

// Returns the first line that contains the text, from there on, without the task that the launcher puts
// before it; "" if there is none.
inline std::string line_with(const std::string& text, const std::string& output) {
  const size_t at = output.find(text);
  return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
}

struct EvaluatedRow {
  int64_t step = 0;
  std::string values;
  bool operator==(const EvaluatedRow&) const = default;
};

// Returns the rows that the chief ("rows step 5 {...}") or the evaluator ("evaluated step 5 {...}") prints.
inline std::vector<EvaluatedRow> rows_in(const std::string& output, const std::string& who = "rows") {
  std::vector<EvaluatedRow> rows;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find(who + " step ");
    if (begin == std::string::npos) continue;
    std::istringstream words(line.substr(begin + who.size() + 6));
    EvaluatedRow row;
    words >> row.step;
    std::getline(words, row.values);
    rows.push_back(std::move(row));
  }
  return rows;
}

inline std::vector<int64_t> steps_of(const std::vector<EvaluatedRow>& rows) {
  std::vector<int64_t> steps;
  for (const EvaluatedRow& row : rows) steps.push_back(row.step);
  return steps;
}

// The end of a training, and its evaluations.
struct Ended {
  std::string hash;
  std::vector<EvaluatedRow> rows;
  bool operator==(const Ended&) const = default;
};

inline Ended ended_in(const std::string& report, const std::string& output) {
  if (!std::filesystem::exists(report)) return {};
  return {json_of(report).at("weights_sha256").get<std::string>(), rows_in(output)};
}

inline Ended ended(const Tasks& tasks, const Flags& flags) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  return ended_in(report, output_of(tasks, with(flags, {"--report", report})));
}

inline Ended ended_under(const Flags& launcher, const Flags& flags) {
  const TestFolder folder;
  const std::string report = folder / "report.json";
  // Only the chief knows the values in some ways of training, and prints them.
  std::string own;
  std::istringstream lines(output_under(launcher, with(flags, {"--report", report})));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[worker/0]") || line.starts_with("[master/0]") || !line.starts_with("["))
      own += line + "\n";
  }
  return ended_in(report, own);
}

}  // namespace tutti::testing
