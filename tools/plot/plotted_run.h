#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::plot {

struct Point {
  double x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

// The numbers that a run has written about itself, in event files and its report.
struct PlottedRun {
  std::string name;
  std::map<std::string, std::vector<Point>> scalars = {};  // by tag; x is the step, in ascending order
  std::map<int64_t, int64_t> staleness = {};               // the number of updates by their staleness
};

// Adds the scalars of one event file to those of the files before it. Values of steps that a resumed run
// makes again replace the earlier ones. A record that is incomplete, since the run is writing it, ends the
// file; a damaged one is a DataLoss. `what` names the file in errors.
void add_events(std::string_view bytes, const std::string& what, PlottedRun& run);

// Reads a log directory with event files, and `report.json` in it if there is one; or the file of a --report,
// whose loss, metrics and speed become one point each. Throws InvalidArgument if the path is none of these.
PlottedRun read_run(const std::string& path);

}  // namespace tutti::plot
