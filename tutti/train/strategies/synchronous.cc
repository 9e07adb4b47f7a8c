#include "tutti/train/strategies/synchronous.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/timeline.h"

namespace tutti {

Synchronous::Synchronous(Replica& replica, comm::Communicator& comm, int64_t lanes,
                         const SynchronousOptions& options)
    : replica_(replica),
      comm_(comm),
      options_(options),
      mean_(replica.parameters(), comm, lanes, options.reducer) {}

StepResult Synchronous::step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                             const LaneObserver& observe) {
  mean_.begin_step(step, wishes, replica_.optimizer().learning_rate());
  for (int64_t lane = lanes().begin; lane < lanes().end; ++lane) {
    const Batch batch = prepare(take(queue, step), step);
    if (batch.size() > 0) {
      add_lane(step, lane, batch, observe);
    } else {
      mean_.skip();
    }
  }
  const GradientMean::Result result = add_up(step);
  if (result.examples > 0) {
    if (options_.clip_norm > 0) mean_.clip_norm(options_.clip_norm);
    const SpanScope span(comm_.timeline(), Activity::Compute, "update", step);
    replica_.optimizer().step();
    mean_.share_update();
  }
  return {step + 1, true, result.examples, result.loss_sum, result.wishes};
}

Batch Synchronous::prepare(const Batch& batch, int64_t step) const {
  const SpanScope span(comm_.timeline(), Activity::Copy, "prepare the batch", step);
  return replica_.prepare(batch);
}

GradientMean::Result Synchronous::add_up(int64_t step) {
  const SpanScope span(comm_.timeline(), Activity::Reduce, "gradients", step);
  return mean_.finish();
}

void Synchronous::add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe) {
  {
    const SpanScope span(comm_.timeline(), Activity::Compute, "clear the gradients", step);
    mean_.begin_lane();
  }
  const LossOutput output =
      replica_.run_lane(step, lane, batch, mean_.weight(batch.size()),
                        [&](const torch::Tensor& loss) { mean_.begin_backward(loss, batch.size()); });
  observe(lane, batch, output);
  const SpanScope span(comm_.timeline(), Activity::Reduce, "add the lane", step);
  mean_.add();
}

}  // namespace tutti
