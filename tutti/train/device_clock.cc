#include "tutti/train/device_clock.h"

#include <utility>

namespace tutti {

void DeviceClock::begin_step() {
  if (device_.is_cuda()) begin_.emplace(device_);
}

void DeviceClock::end_step() {
  if (!begin_) return;
  under_way_.emplace_back(*std::exchange(begin_, std::nullopt), compat::TimedEvent(device_));
  add_passed();
}

void DeviceClock::add_passed() {
  while (!under_way_.empty() && under_way_.front().second.passed()) {
    const auto& [begin, end] = under_way_.front();
    if (const auto passed = begin.milliseconds_until(end))
      milliseconds_ = milliseconds_.value_or(0) + *passed;
    under_way_.pop_front();
  }
}

std::optional<double> DeviceClock::seconds() {
  if (!under_way_.empty()) under_way_.back().second.wait();
  add_passed();
  if (!milliseconds_) return std::nullopt;
  return *milliseconds_ / 1000;
}

}  // namespace tutti
