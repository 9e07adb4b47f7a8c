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

// The digit with this number in the endless book of this seed: a way of writing it, its knots shaken, turned,
// slanted, stretched and shifted, drawn with some pen on some paper. A pure function, in a dozen
// microseconds.
DrawnDigit draw_digit(uint64_t seed, int64_t number);

struct DrawnDigitsOptions {
  int64_t seed = 1;
  int64_t first = 0;  // number of the first example in the book of the seed
  int64_t size = 60000;
};

// Drawn digits as examples: "image" (float32 1x28x28, 0 to 1) and "label" (int64). They are drawn when they
// are read, so that nothing is kept and a program starts at once.
std::shared_ptr<const Source> drawn_digits(const DrawnDigitsOptions& options = {});

}  // namespace tutti::data
