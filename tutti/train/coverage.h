#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/log.h"

namespace tutti {

// If `kernels`, a value of --kernels, is "same", warns of each operator that is not covered (docs/kernels.md)
// and has not been named in this process; if it is "strict", throws Unimplemented. `step` was made last.
void name_not_covered(const Log& log, std::string_view kernels, int64_t step);

// Returns the operators that are not covered, for a report: "aten::lgamma (step 1, after layer 'mean')".
std::vector<std::string> lines_of_not_covered();

}  // namespace tutti
