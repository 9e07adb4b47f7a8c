#pragma once

#include <string>

namespace tutti::chart {

// The colour of text and axes.
inline constexpr const char* kInk = "#7a7f87";

// Returns the colour with this index, "#rrggbb", and kInk below 0. All have a contrast of at least 3 with
// white and with black (WCAG 2).
std::string colour_of(int index);

}  // namespace tutti::chart
