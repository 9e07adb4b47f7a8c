#pragma once

#include <string>
#include <string_view>

namespace tutti::chart {

// Returns the text for XML: with entities, and U+FFFD for what XML cannot contain.
std::string escaped(std::string_view text);

// Returns about how wide the text is in a drawing, in one of the wider fonts.
double width_of(std::string_view text);

// Cuts letters out of the middle of a text that is wider than this, and escapes it.
std::string fitted(std::string_view text, double width);

}  // namespace tutti::chart
