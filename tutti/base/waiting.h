#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/log.h"

// For a task that waits for other tasks: reports in its log which tasks are missing. The caller does the
// waiting itself: it may connect, ask, or sleep.
namespace tutti {

// The time between two lines about missing tasks.
inline constexpr std::chrono::milliseconds kBetweenReminders{10000};

// Logs every ten seconds which tasks are missing. Each of them is a text such as
// "ps/0 (h:2222): nothing answers". Not thread-safe.
class Reminder {
 public:
  // For a task that may wait forever: writes lines for `duration` after the missing tasks have changed, and
  // then a last line, which says that the task continues to wait.
  explicit Reminder(const Log& log, std::chrono::milliseconds duration = kLongestWait,
                    std::chrono::milliseconds between = kBetweenReminders);

  // The time until the next line is due.
  std::chrono::milliseconds until_next() const { return until(next_); }
  // Must be called repeatedly while tasks are missing. Writes a line if one is due.
  void still_missing(const std::vector<std::string>& who);
  // Must be called when no task is missing. Returns true if a line has been written while some were.
  bool nobody_is_missing();

 private:
  using Clock = std::chrono::steady_clock;

  void begin();

  const Log log_;
  const std::chrono::milliseconds duration_;
  const std::chrono::milliseconds between_;
  std::vector<std::string> missing_;
  Clock::time_point last_;  // when no more lines are written
  Clock::time_point next_;
  bool has_written_ = false;
  bool has_ended_ = false;
};

// A wait that ends with a Timeout if tasks are still missing; the error names them:
//
//   for (Waiting waiting(log, timeout, "--start-timeout");;) {
//     const std::vector<std::string> missing = try_for(waiting.patience());
//     if (missing.empty()) return waiting.end("all are connected");
//     waiting.go_on(missing);
//   }
//
// Not thread-safe.
class Waiting {
 public:
  // `flag` is the flag that sets the timeout.
  Waiting(const Log& log, std::chrono::milliseconds timeout, std::string_view flag);

  // The time that the caller may wait before it calls go_on(): until a line is due, or until the timeout.
  std::chrono::milliseconds patience() const;
  // The time until the timeout.
  std::chrono::milliseconds left() const { return until(deadline_); }
  // Throws Timeout if the time is over.
  void go_on(const std::vector<std::string>& missing);
  // Logs the text if missing tasks have been logged.
  void end(std::string_view text);

 private:
  const Log log_;
  const std::chrono::milliseconds timeout_;
  const std::string flag_;
  const std::chrono::steady_clock::time_point deadline_;
  Reminder reminder_;
};

}  // namespace tutti
