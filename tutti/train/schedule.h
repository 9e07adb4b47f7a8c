#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti {

// The learning rate of a step (counted from 0). A pure function of the step and, for a schedule that takes
// its length from the run, of the length of the run; so a resumed run of the same length continues with the
// same rates. A value; an empty one sets no rates.
class Schedule {
 public:
  // The rate at a step of a run of `length` steps.
  using Function = std::function<double(int64_t step, int64_t length)>;

  Schedule() = default;
  // A function of the step alone, or of the step and the length of the run. Implicit, so that a lambda can be
  // used as a schedule.
  template <class Rate>
  requires(!std::same_as<Rate, Schedule> && std::is_invocable_r_v<double, Rate, int64_t>)
      Schedule(Rate rate)  // NOLINT: converts on purpose
      : function_([rate = std::move(rate)](int64_t step, int64_t) -> double { return rate(step); }) {}
  template <class Rate>
  requires(!std::same_as<Rate, Schedule> && std::is_invocable_r_v<double, Rate, int64_t, int64_t>)
      Schedule(Rate rate)  // NOLINT: converts on purpose
      : Schedule(std::move(rate), {}, true) {}
  // `end` is the number of steps after which the rate has its last value, if it is a fixed number.
  Schedule(Function function, std::optional<int64_t> end, bool follows_the_run)
      : function_(std::move(function)), end_(end), follows_the_run_(follows_the_run) {}

  explicit operator bool() const { return static_cast<bool>(function_); }
  // `length` is the length of the run; 0 or Training::kEndless if it is unknown. Throws InvalidArgument then
  // if the schedule takes its length from the run.
  double operator()(int64_t step, int64_t length = 0) const;
  // The number of steps for which the schedule was made; none if it has no end or takes it from the run.
  std::optional<int64_t> end() const { return end_; }
  // Returns true if the rates depend on the length of the run.
  bool follows_the_run() const { return follows_the_run_; }

 private:
  Function function_;
  std::optional<int64_t> end_;
  bool follows_the_run_ = false;
};

namespace schedules {

// A step at which a schedule changes: a number of steps, or a share of the steps of the run.
class Point {
 public:
  Point(std::integral auto step) : step_(step) {}  // NOLINT: converts on purpose
  static Point at_share(double share);             // see share()

  // The step in a run of so many steps.
  int64_t in(int64_t length) const;
  // The step, if it is the same in every run.
  std::optional<int64_t> fixed() const { return share_ ? std::nullopt : std::optional(step_); }

 private:
  int64_t step_ = 0;
  std::optional<double> share_ = {};
};

// A share of the run, from 0 to 1, in place of a number of steps. Throws InvalidArgument if it is another
// number.
//   warm_up(0, share(0.05), cosine(1e-3))
// The length of the run is --steps, or what --epochs and fit() make of it: the step after which the present
// fit() or loop ends.
inline Point share(double of_the_run) { return Point::at_share(of_the_run); }

Schedule constant(double rate);

// Starts at `rate` and multiplies it by `factor` at each of the steps in `at`.
Schedule steps(double rate, std::vector<Point> at, double factor = 0.1);

// `rate` until step `from`, then falls linearly to 0 at step `to`.
Schedule decay(double rate, Point from, Point to = share(1));

// Half a cosine from `rate` at step 0 to `last` at step `length`, then constant (Loshchilov and Hutter 2017).
Schedule cosine(double rate, Point length = share(1), double last = 0);

// Rises linearly from `first` at step 0 to the value of `then` at step `length`, and follows `then`
// afterwards.
Schedule warm_up(double first, Point length, Schedule then);

// Options of large_batch().
struct LargeBatchOptions {
  double base_rate = 0.1;    // the rate for a global batch of base_batch examples
  int64_t base_batch = 256;  // examples
  int64_t batch = 256;       // the global batch that is used: lanes x batch
  Point warm_up_steps = 0;   // five epochs are usual
};

// The recipe for large batches (Goyal and others 2017): the rate grows in proportion to the batch size, and
// is reached from the base rate in a gradual warm-up. `shape` returns the schedule after the warm-up for the
// scaled rate:
//   large_batch({.batch = 8192, .warm_up_steps = 780}, [](double rate) { return steps(rate, {4680, 9360,
//   12480}); });
Schedule large_batch(const LargeBatchOptions& options,
                     const std::function<Schedule(double rate)>& shape = constant);

}  // namespace schedules
}  // namespace tutti
