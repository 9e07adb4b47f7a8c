#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tutti {

// How often something is done: every so many steps, or every so many seconds, never both. Neither: not at
// all.
struct Every {
  int64_t steps = 0;
  double seconds = 0;

  bool never() const { return steps == 0 && seconds == 0; }
  bool operator==(const Every&) const = default;
};

// "500" is steps, "600s" and "0.5s" are seconds, "0" is never. Anything else is an InvalidArgument that
// quotes it.
Every parse_every(std::string_view text);

// Whether it is time again.
class Due {
 public:
  explicit Due(const Every& every) : every_(every) {}

  // So many steps are done: whether there was a multiple since the last time.
  bool at(int64_t step) const;
  // It was done now, after so many steps.
  void restart(int64_t step) {
    step_ = step;
    last_ = std::chrono::steady_clock::now();
  }

 private:
  const Every every_;
  int64_t step_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace tutti
