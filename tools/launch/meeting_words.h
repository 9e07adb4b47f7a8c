#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The messages between launchers, one line in each direction. Data from the network may be anything: a line
// that does not match the format exactly is parsed as nullopt.
namespace tutti {

inline constexpr int kMostWorkersOfAHost = 4096;

// Sent by a launcher to that of the first host: "tutti-run/2 HOST WORKERS PATIENCE-MS FINGERPRINT".
struct Hello {
  static constexpr size_t kLongest = 200;  // bytes

  size_t host = 0;  // its index in JobHosts::row()
  int workers = 1;
  std::chrono::milliseconds patience{0};  // the time after which it wants to know who is missing
  std::string fingerprint;                // JobHosts::fingerprint()

  bool operator==(const Hello&) const = default;
};

// The answer: "all KEY 2 1 4", the key of this launch and the workers of every host; "late TEXT", the
// launchers that are missing; or "no TEXT", the reason why this launcher is refused.
struct Answer {
  static constexpr size_t kLongest = size_t{1} << 20;  // bytes
  enum class Kind { All, Late, No };

  Kind kind = Kind::All;
  std::vector<int> workers = {};
  std::string text = "";    // of one line
  std::string launch = "";  // Identity::launch

  bool operator==(const Answer&) const = default;
};

// Formats a message, including the newline.
std::string to_line(const Hello& hello);
std::string to_line(const Answer& answer);

// Parses a line without its newline.
std::optional<Hello> read_hello(std::string_view line);
std::optional<Answer> read_answer(std::string_view line);

// Returns the first bytes from a stranger in printable form: they cannot move a terminal's cursor.
std::string harmless(std::string_view bytes);
// The maximum length of such a quote in an error.
inline constexpr size_t kLongestQuote = 60;

}  // namespace tutti
