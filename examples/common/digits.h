#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/data/idx.h"
#include "tutti/data/source.h"

namespace example {

// Returns MNIST's digits from the four IDX files in `dir`. If `dir` is empty, returns 60,000 and 10,000 drawn
// digits instead, so that a program runs without any files.
tutti::data::Digits digits(const std::string& dir);

// Pixels of a digit, row by row; 0 is paper and 255 is ink.
constexpr int kDigitSide = 28;
constexpr size_t kDigitSize = size_t{kDigitSide} * kDigitSide;
using DigitPixels = std::array<uint8_t, kDigitSize>;

struct DrawnDigit {
  DigitPixels pixels;
  int label;
};

// Returns the digit with this number in the endless sequence of this seed: one of the ways to write it, with
// its knots randomly displaced, rotated, slanted, stretched and shifted, and drawn with a random pen on
// grainy paper. A pure function; it takes about 12 microseconds.
DrawnDigit draw_digit(uint64_t seed, int64_t number);

// Returns the drawn digits from number `first` on as `size` examples: "image" (float32 1x28x28, 0 to 1) and
// "label" (int64). Each is drawn when it is read, so that nothing is stored and a program starts at once.
std::shared_ptr<const tutti::data::Source> drawn_digits(int64_t first, int64_t size);

}  // namespace example
