#include "tools/plot/chart_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tutti::chart {
namespace {

constexpr double kLetter = 7.6;  // the width of a digit and of most letters

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns the code points of the text, with U+FFFD for bytes that are not UTF-8 and for control characters.
std::vector<std::string> letters_of(std::string_view text) {
  using nlohmann::json;
  const std::string valid =
      json::parse(json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace))
          .get<std::string>();
  std::vector<std::string> letters;
  for (const char byte : valid) {
    const auto code = static_cast<unsigned char>(byte);
    if ((code & 0xC0U) == 0x80U)
      letters.back() += byte;
    else
      letters.push_back(code < ' ' || code == 0x7F ? kReplacement : std::string(1, byte));
  }
  for (std::string& letter : letters) {
    if (letter == "\xEF\xBF\xBE" || letter == "\xEF\xBF\xBF") letter = kReplacement;  // not XML either
  }
  return letters;
}

// Letters of three bytes and more include East Asian letters, which are twice as wide as a digit.
double letter_width(const std::string& letter) {
  if (letter.size() > 2) return 2 * kLetter;
  if (letter.find_first_of("MWm@%") != std::string::npos) return 1.6 * kLetter;
  const bool is_wide = letter == "+" || letter == "w" || (letter >= "A" && letter <= "Z");
  return is_wide ? 1.3 * kLetter : kLetter;
}

double width_of(const std::vector<std::string>& letters) {
  double width = 0;
  for (const std::string& letter : letters) width += letter_width(letter);
  return width;
}

std::string escaped(const std::vector<std::string>& letters) {
  std::string result;
  for (const std::string& letter : letters) {
    if (letter == "&")
      result += "&amp;";
    else if (letter == "<")
      result += "&lt;";
    else if (letter == ">")
      result += "&gt;";
    else if (letter == "\"")
      result += "&quot;";
    else
      result += letter;
  }
  return result;
}

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

std::string escaped(std::string_view text) { return escaped(letters_of(text)); }

double width_of(std::string_view text) { return width_of(letters_of(text)); }

std::string fitted(std::string_view text, double width) {
  const std::vector<std::string> letters = letters_of(text);
  if (width_of(letters) <= width) return escaped(letters);
  std::vector<std::string> begin;
  std::vector<std::string> end;
  double used = 2 * kLetter;  // of the dots
  for (size_t i = 0; i < letters.size(); ++i) {
    const bool from_front = begin.size() <= end.size();
    const std::string& next = from_front ? letters[begin.size()] : letters[letters.size() - 1 - end.size()];
    used += letter_width(next);
    if (used > width) break;
    (from_front ? begin : end).push_back(next);
  }
  std::reverse(end.begin(), end.end());
  return escaped(begin) + "\xE2\x80\xA6" + escaped(end);
}

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
