#include "tutti/data/canvas.h"

#include <algorithm>
#include <cmath>

namespace tutti::data {
namespace {

int first_pixel(float from) { return std::clamp(static_cast<int>(from), 0, kDigitSide - 1); }

float squared(float x) { return x * x; }

}  // namespace

Canvas::Canvas() { squared_distance_.fill(squared(kReach)); }

void Canvas::line(Point a, Point b) {
  const Point along{b.x - a.x, b.y - a.y};
  const float length = squared(along.x) + squared(along.y);
  const float per_length = length > 0.0F ? 1.0F / length : 0.0F;
  const int left = first_pixel(std::min(a.x, b.x) - kReach);
  const int right = first_pixel(std::max(a.x, b.x) + kReach);
  const int bottom = first_pixel(std::max(a.y, b.y) + kReach);
  for (int row = first_pixel(std::min(a.y, b.y) - kReach); row <= bottom; ++row) {
    float* distances = &squared_distance_[static_cast<size_t>(row) * kDigitSide];
    const float dy = static_cast<float>(row) - a.y;
    for (int column = left; column <= right; ++column) {
      const float dx = static_cast<float>(column) - a.x;
      // `share` is the position of the nearest point of the line, as a share of the way from a to b.
      const float share = std::clamp((dx * along.x + dy * along.y) * per_length, 0.0F, 1.0F);
      const float distance = squared(dx - share * along.x) + squared(dy - share * along.y);
      distances[column] = std::min(distances[column], distance);
    }
  }
}

std::array<float, kDigitSize> Canvas::ink(float radius, float softness) const {
  std::array<float, kDigitSize> ink;
  const float outside = radius + softness;
  const float scale = 0.5F / softness;
  for (size_t i = 0; i < ink.size(); ++i) {
    ink[i] = std::clamp((outside - std::sqrt(squared_distance_[i])) * scale, 0.0F, 1.0F);
  }
  return ink;
}

}  // namespace tutti::data
