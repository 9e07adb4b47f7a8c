#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/sweep/plan.h"
#include "tutti/base/json.h"

namespace tutti {

// The values in a run's report when it was stopped, or at its end.
struct Stop {
  int64_t stop_after = 0;  // the requested --stop-after; 0: the end of the run
  int64_t steps = 0;
  bool complete = false;
  std::map<std::string, std::optional<double>> values;  // no value: not a number
  std::string weights_sha256 = {};

  // Returns true if this is the end of the stage or of a later stage. The end of the run is the end of every
  // stage.
  bool reaches(const Stage& stage) const {
    return complete || (stage.stop_after > 0 && steps >= stage.stop_after);
  }
};

// Reads the report that a program has written. Throws DataLoss if it is not one.
Stop read_report(const std::string& path, int64_t stop_after);

// The state of the last process of a run.
enum class RunProcess {
  Ended,  // or none was started
  Running,
  Interrupted,  // it has ended with its sweep, before the end of its stage
};

// A run of a sweep and its known results.
struct SweepRun {
  std::string name;  // of its folder: "run-07"
  RunValues values;
  std::vector<Stop> stops = {};  // in the order of their steps
  RunProcess process = RunProcess::Ended;
  std::optional<Stop> partial = {};  // the last report, if it is not from the end of a stage
  int64_t restarts = 0;              // after it was killed
  double seconds = 0;                // of all its processes
  std::string failure = {};          // how its last process failed, if it did

  bool complete() const { return !stops.empty() && stops.back().complete; }
  // Returns the state at the end of this stage, or nullptr if the run has not reached it.
  const Stop* at(const Stage& stage) const;
  // Returns the last report, or nullptr if there is none.
  const Stop* latest() const;
};

// The state of a sweep. It is stored in sweep.json, with which a later process continues the sweep.
struct SweepResults {
  std::vector<std::string> command;   // with its arguments
  std::vector<std::string> settings;  // the names
  std::vector<SweepRun> runs = {};
};

Json to_json(const SweepResults& results, const SweepGoal& goal);
// Runs that were running when the file was written have the state Interrupted. Throws DataLoss if the file is
// damaged.
SweepResults read_results(const std::string& path);

// Returns true if `one` is better than `other`. Without a value, a run is worse than every run that has one.
bool is_better(const SweepGoal& goal, const Stop& one, const Stop& other);

// Returns the runs in the order of the table, the best first: complete runs before stopped ones, and those
// with more steps before others; runs without a report come last.
std::vector<const SweepRun*> ranked(const SweepResults& results, const SweepGoal& goal);

std::string table_of(const SweepResults& results, const SweepGoal& goal);
std::string csv_of(const SweepResults& results, const SweepGoal& goal);

}  // namespace tutti
