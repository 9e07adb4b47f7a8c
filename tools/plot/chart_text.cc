#include "tools/plot/chart_text.h"

#include <algorithm>
#include <vector>

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

}  // namespace tutti::chart
