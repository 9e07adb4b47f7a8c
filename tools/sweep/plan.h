#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti {

// The limits of values that are drawn log-uniformly: the logarithm is uniform.
struct SweepRange {
  double least = 0;
  double most = 0;
  bool whole = false;  // only whole numbers
};

// A flag of the program with the values that a sweep tries.
struct SweepSetting {
  std::string name;                 // without dashes: "rate"
  std::vector<std::string> values;  // empty with a range
  std::optional<SweepRange> range = {};
};

// Parses "rate=1e-4,1e-3", or a range "rate=1e-5..1e-2". The values of a range whose two ends are written as
// whole numbers, "batch=8..64", are whole numbers. Throws InvalidArgument.
SweepSetting parse_setting(const std::string& text);

// The values of one run, in the order of the settings.
using RunValues = std::vector<std::string>;

inline constexpr size_t kMostRuns = 10'000;

// Returns all combinations; the last setting varies fastest. Throws InvalidArgument if a setting is a range,
// if a name occurs twice, or if there are more than kMostRuns.
std::vector<RunValues> grid_of(const std::vector<SweepSetting>& settings);

// Draws `count` different combinations. The same seed gives the same combinations on every machine. Throws
// InvalidArgument if there are fewer than `count`.
std::vector<RunValues> draw(const std::vector<SweepSetting>& settings, size_t count, uint64_t seed);

// Returns the indices of the runs whose flags have to be checked, in ascending order: the first run, every
// run with a listed value that no earlier run has, and the runs with the smallest and greatest values of a
// range.
std::vector<size_t> runs_to_check(const std::vector<SweepSetting>& settings,
                                  const std::vector<RunValues>& runs);

// Throws InvalidArgument if the command, which is a program with its arguments or `tutti run` with a program,
// has a flag that a setting varies, or a flag that the sweep itself gives to the program.
void require_not_given(const std::vector<SweepSetting>& settings, const std::vector<std::string>& command);

// Throws InvalidArgument if a setting gives the runs different numbers of steps, with which halving cannot
// compare them.
void require_same_steps(const std::vector<SweepSetting>& settings);

// The value of the report that decides which run is better.
struct SweepGoal {
  std::string name = "loss";
  bool maximum = false;
};

// Parses "accuracy:max" or "loss". Without a direction, only names with "loss" or "mse" are accepted, which
// are minimised. Throws InvalidArgument.
SweepGoal parse_goal(const std::string& text);

// A stage of a sweep: the best `runs` of the stage before are trained until the step `stop_after`.
struct Stage {
  int64_t stop_after = 0;  // 0: to the end
  size_t runs = 0;
  bool operator==(const Stage&) const = default;
};

// Successive halving (Jamieson and Talwalkar 2016): from stage to stage there are half as many runs, rounded
// up, with twice as many steps, until one run is trained for all steps. No run stops before `least` steps; if
// `least` cannot be doubled often enough, several runs are trained for all steps.
std::vector<Stage> halving_stages(size_t runs, int64_t steps, int64_t least);

}  // namespace tutti
