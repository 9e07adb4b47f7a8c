#pragma once

#include <string>
#include <vector>

namespace tutti::plot {

// Draws the curves of the runs into one file, `out`, whose name ends in .svg, or in .html for a page. Each path
// is a log directory, or the file of a --report. If there is nothing to draw, or a path is not a run, throws
// InvalidArgument and leaves `out` as it is; a damaged event file is a DataLoss.
void plot_runs(const std::vector<std::string>& paths, const std::string& out);

}  // namespace tutti::plot
