#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::data {

// Pixels of a digit, row by row, 0 paper and 255 ink.
constexpr int kDigitSide = 28;
constexpr size_t kDigitSize = size_t{kDigitSide} * kDigitSide;
using DigitPixels = std::array<uint8_t, kDigitSize>;

struct Point {
  float x;
  float y;
};

// The paper that a pen draws on: it keeps, for every pixel, how far the nearest line is, and turns that into
// ink at the end. So strokes that cross or overlap are not darker there. Used by one thread.
class Canvas {
 public:
  Canvas();

  // A straight line from a to b; pixel (column, row) has its centre at (column, row). Only what lies within
  // kReach of it is looked at.
  void line(Point a, Point b);

  // The ink of a pen with this radius and an edge this soft (both in pixels, radius + softness <= kReach): 0
  // to 1.
  std::array<float, kDigitSize> ink(float radius, float softness) const;

  static constexpr float kReach = 2.75F;

 private:
  std::array<float, kDigitSize> squared_distance_;
};

}  // namespace tutti::data
