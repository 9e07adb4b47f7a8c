#pragma once

#include <string>
#include <string_view>

#include "tools/plot/plotted_run.h"

namespace tutti::plot {

// Adds the scalars and curves of one event file to those of the files before it. Values of steps that a
// resumed run makes again replace the earlier ones. A record that is incomplete, since the run is writing it,
// ends the file; a damaged one, or a curve that cannot be one, is a DataLoss. `what` names the file in
// errors.
void add_events(std::string_view bytes, const std::string& what, PlottedRun& run);

}  // namespace tutti::plot
