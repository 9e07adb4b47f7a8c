#include "tutti/train/strategies/synchronous.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {
namespace {

Batch take(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

}  // namespace

Synchronous::Synchronous(Replica& replica, comm::Communicator& comm, int64_t lanes,
                         const SynchronousOptions& options)
    : replica_(replica), comm_(comm), options_(options), mean_(replica.parameters(), comm, lanes) {}

StepResult Synchronous::step(int64_t step, int64_t stop, data::BatchQueue& queue,
                             const LaneObserver& observe) {
  for (int64_t lane = lanes().begin; lane < lanes().end; ++lane) {
    const Batch batch = replica_.prepare(take(queue, step));
    if (batch.size() > 0) {
      add_lane(step, lane, batch, observe);
    } else {
      mean_.skip();
    }
  }
  const GradientMean::Result result = mean_.finish(step, stop);
  if (result.examples > 0) {
    if (options_.clip_norm > 0) clip_norm(replica_.parameters(), options_.clip_norm);
    replica_.optimizer().step();
  }
  return {result.examples, result.loss_sum, result.stop};
}

void Synchronous::add_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe) {
  mean_.begin_lane();
  const LossOutput output = replica_.run_lane(step, lane, batch, mean_.weight(batch.size()));
  observe(lane, batch, output);
  mean_.add(output.loss, batch.size());
}

}  // namespace tutti
