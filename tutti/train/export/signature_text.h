#pragma once

#include <string>
#include <vector>

#include "tutti/base/json.h"

namespace tutti {

// Describes each function in signature.json by one line: "forward(image float32[*,1,28,28]) -> prediction
// float32[*,10]", where * is a size that is not fixed.
std::vector<std::string> lines_of_signatures(const Json& signature);

// Returns true if an input has a size that is the same in every call.
bool has_fixed_sizes(const Json& signature);

}  // namespace tutti
