#include "tutti/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"

namespace tutti {

double Schedule::operator()(int64_t step, int64_t length) const {
  const bool is_known = length > 0 && length < std::numeric_limits<int64_t>::max();
  if (follows_the_run_ && !is_known)
    fail(ErrorKind::InvalidArgument,
         "the schedule of the learning rate takes its length from the run, but this run has no last step: "
         "give "
         "--steps, or a number of steps to the schedule");
  return function_(step, length);
}

namespace schedules {

Point Point::at_share(double share) {
  if (!(share >= 0 && share <= 1))
    fail(ErrorKind::InvalidArgument, "a share of the run is {}, expected a number from 0 to 1", share);
  Point point(0);
  point.share_ = share;
  return point;
}

int64_t Point::in(int64_t length) const {
  return share_ ? std::llround(*share_ * static_cast<double>(length)) : step_;
}

Schedule constant(double rate) {
  return [rate](int64_t) { return rate; };
}

Schedule steps(double rate, std::vector<Point> at, double factor) {
  const bool follows = std::any_of(at.begin(), at.end(), [](const Point& point) { return !point.fixed(); });
  const auto is_earlier = [](const Point& a, const Point& b) { return a.fixed() < b.fixed(); };
  if (!follows && !std::is_sorted(at.begin(), at.end(), is_earlier))
    fail(ErrorKind::InvalidArgument, "the steps of a learning-rate schedule have to increase");
  return {[rate, at = std::move(at), factor](int64_t step, int64_t length) {
            const auto passed = std::count_if(at.begin(), at.end(),
                                              [&](const Point& point) { return point.in(length) <= step; });
            return rate * same::pow(factor, static_cast<double>(passed));
          },
          std::nullopt, follows};
}

Schedule decay(double rate, Point from, Point to) {
  if ((from.fixed() && *from.fixed() < 0) || (from.fixed() && to.fixed() && *to.fixed() < *from.fixed()))
    fail(ErrorKind::InvalidArgument,
         "a learning rate cannot decay from step {} to step {}: the second step has to be later",
         *from.fixed(), to.fixed().value_or(0));
  return {[rate, from, to](int64_t step, int64_t length) {
            const int64_t begin = from.in(length);
            const int64_t end = to.in(length);
            if (step < begin) return rate;
            if (step >= end) return 0.0;
            return rate * static_cast<double>(end - step) / static_cast<double>(end - begin);
          },
          to.fixed(), !from.fixed() || !to.fixed()};
}

Schedule cosine(double rate, Point length, double last) {
  if (length.fixed() && *length.fixed() < 1)
    fail(ErrorKind::InvalidArgument, "a cosine schedule has {} steps, expected at least one",
         *length.fixed());
  return {[rate, length, last](int64_t step, int64_t of_run) {
            const auto end = static_cast<double>(std::max<int64_t>(1, length.in(of_run)));
            const double progress = std::min(1.0, static_cast<double>(step) / end);
            return last + (rate - last) * 0.5 * (1 + same::cos(std::numbers::pi * progress));
          },
          length.fixed(), !length.fixed()};
}

Schedule warm_up(double first, Point length, Schedule then) {
  if (length.fixed() && *length.fixed() < 1) return then;
  const std::optional<int64_t> end = then.end();
  const bool follows = !length.fixed() || then.follows_the_run();
  return {[first, length, then = std::move(then)](int64_t step, int64_t of_run) {
            const int64_t risen = length.in(of_run);
            if (step >= risen) return then(step, of_run);
            const double progress = static_cast<double>(step) / static_cast<double>(risen);
            return first + (then(risen, of_run) - first) * progress;
          },
          end, follows};
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

}  // namespace schedules
}  // namespace tutti
