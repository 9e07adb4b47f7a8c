#include "tools/plot/chart_colours.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace tutti::chart {
namespace {

constexpr std::array<const char*, 8> kColours = {"#3b7dd8", "#d8592f", "#2b9348", "#a855c7",
                                                 "#b07d12", "#d6457f", "#16908c", "#7a7f87"};

// Returns a colour of this hue (0 to 1) and relative luminance (WCAG 2).
std::string colour_with(double hue, double luminance) {
  constexpr std::array<double, 3> kWeights = {0.2126, 0.7152, 0.0722};
  std::array<double, 3> parts{};
  double pure = 0;  // the luminance of the full colour
  for (size_t i = 0; i < parts.size(); ++i) {
    const double angle = std::fmod(hue * 6 + 6 - 2 * static_cast<double>(i), 6);
    parts.at(i) = std::clamp(2 - std::min(angle, 6 - angle), 0.0, 1.0);
    pure += kWeights.at(i) * parts.at(i);
  }
  std::string text = "#";
  for (double part : parts) {
    // Mixed with black, or with white.
    part = pure > luminance ? part * luminance / pure : part + (1 - part) * (luminance - pure) / (1 - pure);
    const double shown = part <= 0.0031308 ? 12.92 * part : 1.055 * std::pow(part, 1 / 2.4) - 0.055;
    text += fmt::format("{:02x}", std::lround(255 * shown));
  }
  return text;
}

}  // namespace

// Colours after the first ones go around the circle of hues in steps of the golden angle, in turn darker and
// lighter, so that all colours differ, and consecutive ones differ most.
std::string colour_of(int index) {
  if (index < 0) return kInk;
  const auto number = static_cast<size_t>(index);
  if (number < kColours.size()) return kColours.at(number);
  constexpr double kGoldenAngle = 0.381966;
  return colour_with(std::fmod(index * kGoldenAngle, 1), number % 2 == 0 ? 0.135 : 0.27);
}

}  // namespace tutti::chart
