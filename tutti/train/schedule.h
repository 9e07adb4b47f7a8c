#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tutti {

// The learning rate of a step (from 0): a pure function, so that a resumed run goes on where it was.
using Schedule = std::function<double(int64_t step)>;

namespace schedules {

Schedule constant(double rate);

// `rate` at first, and times `factor` from each of the steps on.
Schedule steps(double rate, std::vector<int64_t> at, double factor = 0.1);

// `rate` at first; from step `from` on in a straight line to 0 at step `to`.
Schedule decay(double rate, int64_t from, int64_t to);

// Half a cosine from `rate` at step 0 to `last` at step `length`, and `last` from there on (Loshchilov and
// Hutter 2017).
Schedule cosine(double rate, int64_t length, double last = 0);

// Rises in a straight line, by the same amount every step, from `first` to what `then` gives at step
// `length`; then follows it.
Schedule warm_up(double first, int64_t length, Schedule then);

struct LargeBatchOptions {
  double base_rate = 0.1;  // fits a global batch of base_batch
  int64_t base_batch = 256;
  int64_t batch = 256;        // the global batch that is used: lanes x batch
  int64_t warm_up_steps = 0;  // five epochs are usual
};

// The recipe for large batches (Goyal and others 2017): k times the batch takes k times the rate, reached
// from the base rate in a gradual warm-up. `shape` is what comes then, as a function of the scaled rate:
//   large_batch({.batch = 8192, .warm_up_steps = 780}, [](double rate) { return steps(rate, {4680, 9360,
//   12480}); });
Schedule large_batch(const LargeBatchOptions& options,
                     const std::function<Schedule(double rate)>& shape = constant);

}  // namespace schedules
}  // namespace tutti
