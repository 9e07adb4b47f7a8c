#include "tutti/train/data_parallel.h"

#include <utility>

#include "tutti/base/timeline.h"

namespace tutti {

StepRange DataParallel::begin_steps(int64_t step, int64_t end, int64_t feed_begin) {
  const StepRange range = steps_of_feed(step, end, feed_begin);
  feed_begin_ = feed_begin;
  steps_left_ = range.end - range.begin;
  ahead_.reset();
  replica().tables().forget_ahead();
  return range;
}

StepResult DataParallel::step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                              const LaneObserver& observe) {
  run_lanes(step, queue, begin_step(step, wishes), observe);
  const StepResult result = end_step();
  for (int64_t passed = 1; passed <= result.missed; ++passed) skip_step(step + passed, queue);
  return result;
}

// Runs all lanes, in order. If there are tables, all workers fetch their rows before the first lane, and ask
// for the rows of the next step. A forward and backward pass sends nothing to other workers, so that lanes
// may be empty.
void DataParallel::run_lanes(int64_t step, data::BatchQueue& queue, LaneSum& sum,
                             const LaneObserver& observe) {
  const LaneRange& lanes = facts().lanes;
  embedding::Tables& tables = replica().tables();
  const std::optional<int64_t> audited = lane_to_audit(step);
  if (tables.empty()) {
    if (audited) run_audited(step, *audited, queue.read(step - feed_begin_, *audited), sum);
    for (int64_t lane = lanes.begin; lane < lanes.end; ++lane)
      replica().run_lane(step, lane, take_batch(queue, step), sum, observe);
    return;
  }
  const bool was_announced = ahead_.has_value();
  const std::vector<Batch> batches = was_announced ? *std::move(ahead_) : next_batches(queue, step);
  ahead_.reset();
  {
    const SpanScope span(replica().options().timeline, Activity::Copy, "fetch rows", step);
    was_announced ? tables.fetch_ahead() : tables.fetch(batches);
    if (--steps_left_ > 0 && tables.looks_ahead()) {
      ahead_ = next_batches(queue, step + 1);
      tables.look_ahead(*ahead_);
    }
  }
  const auto own = static_cast<size_t>(lanes.size());
  if (audited) {
    tables.begin_lane(own);
    run_audited(step, *audited, batches[own], sum);
    tables.end_lane();
  }
  for (size_t i = 0; i < own; ++i) {
    tables.begin_lane(i);
    replica().run_lane(step, lanes.begin + static_cast<int64_t>(i), batches[i], sum, observe);
    tables.end_lane();
  }
}

void DataParallel::run_audited(int64_t step, int64_t lane, const Batch& batch, LaneSum& sum) {
  replica().run_lane(step, lane, batch, sum, [](int64_t, const Batch&, const LossOutput&) {});
}

// Returns the next batches, one for each lane, and then the batch of a lane to be audited.
std::vector<Batch> DataParallel::next_batches(data::BatchQueue& queue, int64_t step) {
  std::vector<Batch> batches;
  for (int64_t lane = facts().lanes.begin; lane < facts().lanes.end; ++lane)
    batches.push_back(replica().prepare(take_batch(queue, step)));
  if (const auto audited = lane_to_audit(step))
    batches.push_back(replica().prepare(queue.read(step - feed_begin_, *audited)));
  return batches;
}

// Passes over a step that is not made, whose batches the queue has.
void DataParallel::skip_step(int64_t step, data::BatchQueue& queue) {
  --steps_left_;
  if (!ahead_) {
    for (int64_t lane = facts().lanes.begin; lane < facts().lanes.end; ++lane)
      static_cast<void>(take_batch(queue, step));
    return;
  }
  ahead_.reset();
  replica().tables().forget_ahead();
}

}  // namespace tutti
