#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What launchers say to one another, a line each way. What comes from the network may be anything: whatever
// is not exactly such a line reads as nothing.
namespace tutti {

inline constexpr int kMostWorkersOfAHost = 4096;

// From a launcher to the first of the row: "tutti-run/2 HOST WORKERS PATIENCE-MS FINGERPRINT".
struct Hello {
  static constexpr size_t kLongest = 200;  // bytes

  size_t host = 0;  // its place in the row
  int workers = 1;
  std::chrono::milliseconds patience{0};  // after which it wants to hear who is late
  std::string fingerprint;                // of the row

  bool operator==(const Hello&) const = default;
};

// Back: "all KEY 2 1 4", the key of this launch and the workers of every host; "late TEXT", who has not come
// in time; "no TEXT", why this launcher does not belong here.
struct Answer {
  static constexpr size_t kLongest = size_t{1} << 20;  // bytes
  enum class Kind { All, Late, No };

  Kind kind = Kind::All;
  std::vector<int> workers = {};
  std::string text = "";    // of one line
  std::string launch = "";  // Identity::launch

  bool operator==(const Answer&) const = default;
};

// With the newline.
std::string to_line(const Hello& hello);
std::string to_line(const Answer& answer);

// Of lines without it.
std::optional<Hello> read_hello(std::string_view line);
std::optional<Answer> read_answer(std::string_view line);

// The first bytes of what a stranger sent, for people: nothing in it can move a terminal's cursor.
std::string harmless(std::string_view bytes);
// So many of them in an error.
inline constexpr size_t kLongestQuote = 60;

}  // namespace tutti
