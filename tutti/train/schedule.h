#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

// The learning rate of a step (counted from 0): a pure function, so a resumed run continues with the same
// rates.
using Schedule = std::function<double(int64_t step)>;

namespace schedules {

Schedule constant(double rate);

// Starts at `rate` and multiplies it by `factor` at each of the steps in `at`.
Schedule steps(double rate, std::vector<int64_t> at, double factor = 0.1);

// `rate` until step `from`, then falls linearly to 0 at step `to`.
Schedule decay(double rate, int64_t from, int64_t to);

// Half a cosine from `rate` at step 0 to `last` at step `length`, then constant (Loshchilov and Hutter 2017).
Schedule cosine(double rate, int64_t length, double last = 0);

// Rises linearly from `first` at step 0 to the value of `then` at step `length`, and follows `then`
// afterwards.
Schedule warm_up(double first, int64_t length, Schedule then);

struct LargeBatchOptions {
  double base_rate = 0.1;  // the rate for a global batch of base_batch examples
  int64_t base_batch = 256;
  int64_t batch = 256;        // the global batch that is used: lanes x batch
  int64_t warm_up_steps = 0;  // five epochs are usual
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
