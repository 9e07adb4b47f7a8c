#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/plot/chart.h"

namespace tutti::plot {

// The number of examples of each class that a classifier assigns to each class, at one threshold. They may be
// weighted.
struct Counts {
  double true_positives = 0;
  double false_positives = 0;
  double true_negatives = 0;
  double false_negatives = 0;
};

// The counts at rising thresholds, measured after a step.
struct CountsAtStep {
  double step = 0;
  std::vector<Counts> thresholds = {};
};

// The numbers that a run has written about itself, in event files and its report.
struct PlottedRun {
  std::string name;
  std::map<std::string, std::vector<chart::Point>> scalars = {};  // by tag; x is the step, in ascending order
  std::map<std::string, std::vector<CountsAtStep>> counts = {};   // by tag, in ascending order of the steps
  std::map<int64_t, int64_t> staleness = {};                      // the number of updates by their staleness
};

// Reads a log directory with event files, and `report.json` in it if there is one; or the file of a --report,
// whose loss, metrics and speed become one point each. Throws InvalidArgument for any other path.
PlottedRun read_run(const std::string& path);

}  // namespace tutti::plot
