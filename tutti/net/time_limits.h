#pragma once

#include <algorithm>
#include <chrono>
#include <functional>

namespace tutti::net {

using Clock = std::chrono::steady_clock;

// How long an operation may wait: a deadline for all of it, and a limit for each wait without progress.
struct TimeLimits {
  Clock::time_point deadline = Clock::time_point::max();
  Clock::duration each = Clock::duration::max();
  // Called ten times a second during a wait; ends it by an exception. May be empty.
  std::function<void()> look = {};

  // Returns the end of a wait that begins now.
  Clock::time_point next() const {
    const auto now = Clock::now();
    return deadline - now > each ? now + each : deadline;
  }
};

}  // namespace tutti::net
