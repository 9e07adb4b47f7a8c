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
  int64_t step = 0;  // steps made by now, those of other workers included
  // Whether this worker has made the last of them, or had a part in it. It has not where its gradients are
  // still on their way, or came when there was no step left to make.
  bool made = true;
  int64_t examples = 0;
  // The sum of all examples' losses: one float64, still on the device. Undefined where no lane had data, or
  // nobody has said what they are.
  torch::Tensor loss_sum = {};
  Wishes wishes;  // of all workers

  bool has_loss() const { return examples > 0 && loss_sum.defined(); }
  // Mean loss of the step's examples, where there is one; waits for the device.
  double loss() const {
    if (!has_loss())
      fail(ErrorKind::InvalidArgument, "step {} has no loss: no examples, or nobody has said it", step);
    return loss_sum.item<double>() / static_cast<double>(examples);
  }
};

struct StepRange {
  int64_t begin = 0;
  int64_t end = 0;  // one past the last
};

// Called for every lane of this worker, in order, before the step changes anything.
using LaneObserver = std::function<void(int64_t lane, const Batch& batch, const LossOutput& output)>;

// The next batch, which has to be there.
Batch take(data::BatchQueue& queue, int64_t step);

// How a step is made of the lanes' gradients: alone, by all-reduce, by parameter servers, or by a driving
// client.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;
  // Those of this worker.
  virtual LaneRange lanes() const = 0;
  // Whether all workers make every step together, and so stop after the same one.
  virtual bool in_step() const = 0;
  // The steps of the data that this worker goes through while all make those from `step` to `end`.
  virtual StepRange data_steps(int64_t step, int64_t end) const = 0;
  // No step is made beyond these.
  virtual void ends_at(int64_t step) = 0;
  // Makes step number `step` (from 0): takes this worker's lanes from the queue, in order, and updates the
  // parameters. A step that fails has not changed them. All hear of what this worker wishes.
  virtual StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                          const LaneObserver& observe) = 0;
  // Waits for what is under way to other tasks, and takes nothing over: what leads there is free then for
  // somebody else to use. What has failed on its way is thrown, and will be again where it is taken over.
  virtual void settle() {}
  // Waits for what is still under way; returns the steps made.
  virtual int64_t finish(int64_t step) = 0;
  // How gradients are added, for the report: "tree" or "fast".
  virtual std::string reduce() const = 0;
};

}  // namespace tutti
