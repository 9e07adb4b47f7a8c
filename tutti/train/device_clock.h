#pragma once

#include <deque>
#include <optional>
#include <utility>

#include <torch/types.h>

#include "tutti/base/torch_compat.h"

namespace tutti {

// Measures the time that steps take on a GPU, without waiting for it. Does nothing on a CPU. Not thread-safe.
class DeviceClock {
 public:
  explicit DeviceClock(torch::Device device) : device_(device) {}

  void begin_step();
  void end_step();
  // Returns the time of all steps, waiting for the last; nullopt without a GPU or if it cannot be read.
  std::optional<double> seconds();

 private:
  void add_passed();

  const torch::Device device_;
  std::optional<compat::TimedEvent> begin_;
  std::deque<std::pair<compat::TimedEvent, compat::TimedEvent>> under_way_;
  std::optional<double> milliseconds_;
};

}  // namespace tutti
