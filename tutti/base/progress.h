#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace tutti {

// How functions that take long say how far they are. Whoever calls them shows it (Meter in live_line.h).

// Called now and then with the number of rows or bytes that are done, and of all that there are, by any
// thread. May be empty.
using OnProgress = std::function<void(int64_t done, int64_t all)>;

// Called now and then with the number of bytes that were read or written since the last call. May be empty.
using OnBytes = std::function<void(int64_t bytes)>;

// Returns a function that adds up bytes and tells how many of `all` are done. Empty if nobody is told.
inline OnBytes counted(const OnProgress& tell, int64_t all) {
  if (!tell) return {};
  return [tell, all, done = std::make_shared<std::atomic<int64_t>>(0)](int64_t bytes) {
    tell(std::min(*done += bytes, all), all);
  };
}

}  // namespace tutti
