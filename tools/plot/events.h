#pragma once

#include <string>
#include <string_view>

#include "tools/plot/plotted_run.h"

namespace tutti::plot {

// Adds the scalars and curves of one event file to the scalars and curves of earlier files. Values of steps
// that a resumed run makes again replace the earlier values. An incomplete record, which the run is still
// writing, ends the file; a damaged record, or a curve that is not valid, is a DataLoss. `what` names the
// file in errors.
void add_events(std::string_view bytes, const std::string& what, PlottedRun& run);

}  // namespace tutti::plot
