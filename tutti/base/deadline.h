#pragma once

#include <algorithm>
#include <chrono>

#include <climits>

namespace tutti {

// The longest wait, 24 days: poll(2) takes milliseconds as an int. The sum of a few such waits does not
// overflow any clock.
inline constexpr std::chrono::milliseconds kLongestWait{INT_MAX};

// Converts the seconds of a flag to a wait: rounded up, between 0 and kLongestWait. NaN gives 0.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  using std::chrono::milliseconds;
  if (!(seconds > 0)) return milliseconds(0);
  if (seconds >= std::chrono::duration<double>(kLongestWait).count()) return kLongestWait;
  return std::chrono::ceil<milliseconds>(std::chrono::duration<double>(seconds));
}

// Returns the end of a wait that begins now. A wait beyond kLongestWait is limited to it, since adding it to
// the clock would overflow.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds wait) {
  return std::chrono::steady_clock::now() + std::min(wait, kLongestWait);
}

// Returns the time left until the deadline, rounded up; never negative.
inline std::chrono::milliseconds until(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(0),
                  std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()));
}

// Like until(), but as an int for poll(2).
inline int poll_time(std::chrono::steady_clock::time_point deadline) {
  return static_cast<int>(std::min<std::chrono::milliseconds::rep>(until(deadline).count(), INT_MAX));
}

// Returns the time in seconds, for messages that print it with "{:g} s".
inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace tutti
