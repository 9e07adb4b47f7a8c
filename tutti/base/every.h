#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace tutti {

// The frequency of an action: every `steps` steps or every `seconds` seconds, or chosen by the action itself.
// At most one of the three is set; if none is, the action is never done.
struct Every {
  int64_t steps = 0;
  double seconds = 0;
  bool automatic = false;

  bool never() const { return *this == Every(); }
  bool operator==(const Every&) const = default;
};

// Parses "500" as steps, "600s" and "0.5s" as seconds, "auto", and "0" as never. Anything else is an
// InvalidArgument that quotes the text.
Every parse_every(std::string_view text);

// The interval of steps [begin, end), counted from 0.
struct StepInterval {
  int64_t begin = 0;
  int64_t end = 0;
};

// Parses "10..12" as the steps 10 and 11, and "10" as step 10 alone. Anything else is an InvalidArgument.
StepInterval parse_step_interval(std::string_view text);

// Tells when an action that is done at intervals is due.
class Due {
 public:
  explicit Due(const Every& every) : every_(every) {}

  // Returns true if a multiple of `every.steps` lies after the last restart and not after `step`, or if
  // `every.seconds` have passed since then.
  bool at(int64_t step) const;
  // Must be called when the action has been done, after `step` steps.
  void restart(int64_t step) {
    step_ = step;
    last_ = std::chrono::steady_clock::now();
  }

 private:
  Every every_;
  int64_t step_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace tutti
