#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::data {

// Pixels of a digit, row by row; 0 is paper and 255 is ink.
constexpr int kDigitSide = 28;
constexpr size_t kDigitSize = size_t{kDigitSide} * kDigitSide;
using DigitPixels = std::array<uint8_t, kDigitSize>;

struct Point {
  float x;
  float y;
};

// A canvas for strokes of a pen. It stores for every pixel the distance of the nearest line, and ink() turns
// this into darkness, so that strokes that cross or overlap are not darker there. Not thread-safe.
class Canvas {
 public:
  Canvas();

  // Draws a straight line from a to b; pixel (column, row) has its centre at (column, row). Only pixels
  // within kReach of it are updated.
  void line(Point a, Point b);

  // Returns the darkness of each pixel, 0 to 1, for a pen with this radius and this softness of its edge
  // (both in pixels, radius + softness <= kReach).
  std::array<float, kDigitSize> ink(float radius, float softness) const;

  static constexpr float kReach = 2.75F;

 private:
  std::array<float, kDigitSize> squared_distance_;
};

}  // namespace tutti::data
