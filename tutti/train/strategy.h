#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/data/batch_queue.h"
#include "tutti/params/control_word.h"
#include "tutti/params/lanes.h"
#include "tutti/train/trainable.h"

namespace tutti {

struct StepResult {
  int64_t step = 0;  // steps made so far, including those of other workers
  // True if this worker made the last of these steps or took part in it. False if its gradients are still in
  // transit, or arrived when there was no step left to make.
  bool made = true;
  int64_t examples = 0;
  // The sum of the losses of all examples: one float64, still on the device. Undefined if no lane had data,
  // or if the program did not report its losses.
  torch::Tensor loss_sum = {};
  Wishes wishes;  // of all workers

  bool has_loss() const { return examples > 0 && loss_sum.defined(); }
  // Returns the mean loss of the step's examples; throws if there is none. Waits for the device.
  double loss() const {
    if (!has_loss())
      fail(ErrorKind::InvalidArgument,
           "step {} has no loss: it had no examples, or the program did not report the loss", step);
    return loss_sum.item<double>() / static_cast<double>(examples);
  }
};

struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;  // one past the last
};

// Called for every lane of this worker, in order, before the step changes anything.
using LaneObserver = std::function<void(int64_t lane, const Batch& batch, const LossOutput& output)>;

// Returns the next batch of the queue, which must not be at its end.
Batch take(data::BatchQueue& queue, int64_t step);

// The way in which a step is made from the gradients of the lanes: alone, by all-reduce, by parameter
// servers, or by a master.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;
  // The lanes of this worker.
  virtual LaneRange lanes() const = 0;
  // Returns true if all workers make every step together, and so stop after the same one.
  virtual bool in_step() const = 0;
  // Returns the steps of the data that this worker uses while all make the steps from `step` to `end`.
  virtual StepRange data_steps(int64_t step, int64_t end) const = 0;
  // Sets the number of steps after which no more are made.
  virtual void ends_at(int64_t step) = 0;
  // Makes step number `step` (from 0): takes this worker's lanes from the queue, in order, and updates the
  // parameters. A step that fails has not changed them. The wishes of this worker are sent to all others.
  virtual StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                          const LaneObserver& observe) = 0;
  // Waits until all pending requests to other tasks have finished, without applying their results. Afterwards
  // the connections may be used by other callers. Throws the error of a failed request, as finish() will too.
  virtual void settle() {}
  // Waits for pending requests and applies their results; returns the number of steps made.
  virtual int64_t finish(int64_t step) = 0;
  // The way in which gradients are added, for the report: "tree" or "fast".
  virtual std::string reduce() const = 0;
};

}  // namespace tutti
