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

}  // namespace tutti::chart
