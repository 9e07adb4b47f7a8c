#pragma once

#include <string>
#include <string_view>

namespace tutti::chart {

// Escapes the text for XML: with entities, and with U+FFFD for characters that XML cannot contain.
std::string escaped(std::string_view text);

// Returns the approximate width of the text in a drawing, in one of the wider fonts.
double width_of(std::string_view text);

// Cuts letters out of the middle of a text that is wider than this, and escapes it.
std::string fitted(std::string_view text, double width);

// The colour of text and axes.
inline constexpr const char* kInk = "#7a7f87";

// Returns the colour with this index, "#rrggbb", and kInk below 0. All have a contrast of at least 3 with
// white and with black (WCAG 2).
std::string colour_of(int index);

}  // namespace tutti::chart
