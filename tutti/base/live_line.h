#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

// The values of --log: whether stderr has a line that changes in place.
inline constexpr const char* kLogVariable = "TUTTI_LOG";
inline constexpr const char* kLogAuto = "auto";    // if it is a terminal
inline constexpr const char* kLogLive = "live";    // also if it leads to a launcher, which shows the line
inline constexpr const char* kLogPlain = "plain";  // it has none

// Returns true if stderr has such a line with this value.
bool is_live(std::string_view log);
// Returns the beginning of a text that a terminal shows in so many columns, without a line break.
std::string fitted_to(std::string_view text, int columns);
// The columns of the terminal of a descriptor; 80 if it does not say.
int columns_of(int descriptor);
// Returns how text that stands on the line in a terminal is replaced.
std::string replaced_by(std::string_view text, int columns);

// A line on stderr that changes in place, such as "step 12/500", below the lines of the log. Where stderr is
// no terminal, each text ends with '\r', and a launcher shows it. Not thread-safe.
class LiveLine {
 public:
  explicit LiveLine(std::string_view log);

  // Returns false if nothing is shown: then the log has to do.
  bool is_shown() const { return is_shown_; }
  void show(std::string text);
  // Ends the line, so that its last text stays, or goes.
  void leave();
  void remove();

  // Returns "[=====>    ]" for a share of 0 to 1, in colour unless NO_COLOR is set.
  std::string bar(double share) const;

 private:
  bool is_shown_ = false;
  bool in_terminal_ = false;
  bool has_colour_ = false;
  std::string text_;
};

// Shows how far something is that may take a while, from its second second on. Not thread-safe.
class Meter {
 public:
  // `what` is done when at() was called with `total`.
  Meter(std::string_view log, std::string what, int64_t total);
  ~Meter() { line_.remove(); }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void at(int64_t done);

 private:
  LiveLine line_;
  const std::string what_;
  const int64_t total_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tutti
