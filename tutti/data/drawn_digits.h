#pragma once

#include <cstdint>
#include <memory>

#include "tutti/data/canvas.h"
#include "tutti/data/source.h"

namespace tutti::data {

struct DrawnDigit {
  DigitPixels pixels;
  int label;
};

// Returns the digit with this number in the endless sequence of this seed: one of the ways to write it, with
// its knots randomly displaced, rotated, slanted, stretched and shifted, and drawn with a random pen on
// grainy paper. A pure function; it takes about 12 microseconds.
DrawnDigit draw_digit(uint64_t seed, int64_t number);

struct DrawnDigitsOptions {
  int64_t seed = 1;
  int64_t first = 0;  // number of the first example in the sequence of the seed
  int64_t size = 60000;
};

// Returns drawn digits as examples: "image" (float32 1x28x28, 0 to 1) and "label" (int64). Each is drawn when
// it is read, so that nothing is stored and a program starts at once.
std::shared_ptr<const Source> drawn_digits(const DrawnDigitsOptions& options = {});

}  // namespace tutti::data
