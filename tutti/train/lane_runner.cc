#include "tutti/train/lane_runner.h"

#include "tutti/base/timeline.h"

namespace tutti {

void LaneRunner::run_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe) {
  if (batch.size() == 0) {
    sum_.skip();
    return;
  }
  Timeline* timeline = replica_.options().timeline;
  const Batch ready = prepared(batch, step);
  {
    const SpanScope span(timeline, Activity::Compute, "clear the gradients", step);
    sum_.begin_lane();
  }
  const LossOutput output =
      replica_.run_lane(step, lane, ready, sum_.weight(ready.size()),
                        [&](const torch::Tensor& loss) { sum_.begin_backward(loss, ready.size()); });
  observe(lane, ready, output);
  const SpanScope span(timeline, Activity::Reduce, "add the lane", step);
  sum_.add();
}

void LaneRunner::run_step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe) {
  for (int64_t lane = lanes_.begin; lane < lanes_.end; ++lane)
    run_lane(step, lane, take(queue, step), observe);
}

Batch LaneRunner::prepared(const Batch& batch, int64_t step) const {
  const SpanScope span(replica_.options().timeline, Activity::Copy, "prepare the batch", step);
  return replica_.prepare(batch);
}

}  // namespace tutti
