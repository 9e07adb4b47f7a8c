#include "tutti/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::schedules {

Schedule constant(double rate) {
  return [rate](int64_t) { return rate; };
}

Schedule steps(double rate, std::vector<int64_t> at, double factor) {
  if (!std::is_sorted(at.begin(), at.end())) {
    fail(ErrorKind::InvalidArgument, "the steps of a learning-rate schedule have to increase");
  }
  return [rate, at = std::move(at), factor](int64_t step) {
    const auto passed = std::upper_bound(at.begin(), at.end(), step) - at.begin();
    return rate * std::pow(factor, static_cast<double>(passed));
  };
}

Schedule decay(double rate, int64_t from, int64_t to) {
  if (from < 0 || to < from)
    fail(ErrorKind::InvalidArgument,
         "a learning rate cannot decay from step {} to step {}: the second step has to be later", from, to);
  return [rate, from, to](int64_t step) {
    if (step < from) return rate;
    if (step >= to) return 0.0;
    return rate * static_cast<double>(to - step) / static_cast<double>(to - from);
  };
}

Schedule cosine(double rate, int64_t length, double last) {
  if (length < 1)
    fail(ErrorKind::InvalidArgument, "a cosine schedule has {} steps, expected at least one", length);
  return [rate, length, last](int64_t step) {
    const double progress = std::min(1.0, static_cast<double>(step) / static_cast<double>(length));
    return last + (rate - last) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
}

Schedule warm_up(double first, int64_t length, Schedule then) {
  if (length < 1) return then;
  return [first, length, then = std::move(then)](int64_t step) {
    if (step >= length) return then(step);
    const double progress = static_cast<double>(step) / static_cast<double>(length);
    return first + (then(length) - first) * progress;
  };
}

Schedule large_batch(const LargeBatchOptions& options, const std::function<Schedule(double rate)>& shape) {
  if (options.batch < 1 || options.base_batch < 1) {
    fail(ErrorKind::InvalidArgument,
         "a schedule has a batch of {} examples and a base batch of {}: both have to be positive",
         options.batch, options.base_batch);
  }
  const double scale = static_cast<double>(options.batch) / static_cast<double>(options.base_batch);
  return warm_up(options.base_rate, options.warm_up_steps, shape(options.base_rate * scale));
}

}  // namespace tutti::schedules
