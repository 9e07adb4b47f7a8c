#pragma once

#include <span>

namespace tutti::data {

// A point that the pen passes; the box of a digit is the unit square, y grows downwards. Through a smooth
// knot the pen goes in a curve, at a corner it turns.
struct Knot {
  enum Kind { Smooth, Corner, Lift };  // Lift: the stroke ends here, and the next knot begins another one
  float x;
  float y;
  Kind kind = Smooth;
};

// One way to write a digit.
using DigitShape = std::span<const Knot>;

// The ways in which people write `digit` (0 to 9). Never empty.
std::span<const DigitShape> shapes_of(int digit);

}  // namespace tutti::data
