#pragma once

#include <algorithm>
#include <chrono>

#include <climits>

namespace tutti {

// What is left until then, rounded up; never less than nothing.
inline std::chrono::milliseconds until(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(0),
                  std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()));
}

// The same for poll(2), which counts in int.
inline int poll_time(std::chrono::steady_clock::time_point deadline) {
  return static_cast<int>(std::min<std::chrono::milliseconds::rep>(until(deadline).count(), INT_MAX));
}

// For texts: "{:g} s".
inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace tutti
