#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/progress.h"

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

class Meter;

// A line on stderr that changes in place, such as "step 12/500", below the lines of the log. Where stderr is
// no terminal, each text ends with '\r', a second '\r' removes it, and a launcher shows it. A process has
// one such line at a time. Thread-safe.
class LiveLine {
 public:
  explicit LiveLine(std::string_view log);

  // Returns false if nothing is shown: then the log has to do.
  bool is_shown() const { return is_shown_; }
  // `rest` is what a narrow terminal may leave out: it stands behind what Meters show.
  void show(std::string text, std::string rest = "");
  // Ends the line, so that its last text stays.
  void leave();

  // Returns "[=====>    ]" for a share of 0 to 1, in colour unless NO_COLOR is set.
  std::string bar(double share) const;

 private:
  friend class Meter;
  // The two texts of a Meter: beside the text of the line, or in its place if it has none.
  struct Reading {
    const Meter* of;
    std::string beside;
    std::string alone;
  };
  void put(Reading reading);
  void remove(const Meter* meter);
  std::string composed() const;
  void draw();

  bool is_shown_ = false;
  bool in_terminal_ = false;
  bool has_colour_ = false;

  std::mutex mutex_;  // guards all that follows
  std::string text_;
  std::string rest_;
  std::vector<Reading> readings_;
  bool is_drawn_ = false;
};

// Shows how far something is that may take a while: as a part of the line, or with a bar while the line has
// no other text. Shorter work shows nothing. Thread-safe.
class Meter {
 public:
  // The unit of the numbers that at() is told.
  enum class Unit { Pieces, Bytes };
  static constexpr std::chrono::milliseconds kPatience{1000};

  // The line must outlive the meter. Nothing is shown before `patience` is over.
  Meter(LiveLine& line, std::string what, Unit unit = Unit::Pieces,
        std::chrono::milliseconds patience = kPatience);
  ~Meter() { line_.remove(this); }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void at(int64_t done, int64_t all);
  // Returns a function that calls at(). The meter must outlive it.
  OnProgress teller() {
    return [this](int64_t done, int64_t all) { at(done, all); };
  }

 private:
  using Clock = std::chrono::steady_clock;

  LiveLine& line_;
  const std::string what_;
  const Unit unit_;
  std::atomic<Clock::rep> next_;
};

}  // namespace tutti
