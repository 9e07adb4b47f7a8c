#pragma once

#include <cstddef>
#include <span>

namespace example {

// A point on the path of the pen; the box of a digit is the unit square, y grows downwards. The path is
// curved at a smooth knot and changes direction at a corner.
struct Knot {
  enum Kind { Smooth, Corner, Lift };  // Lift: the stroke ends here, and the next knot begins another
  float x;
  float y;
  Kind kind = Smooth;
};

// One way to write a digit.
using DigitShape = std::span<const Knot>;

// Returns the ways in which people write `digit` (0 to 9). Never empty.
std::span<const DigitShape> shapes_of(size_t digit);

}  // namespace example
