#pragma once

#include <cstdint>

#include "tutti/params/lane_sum.h"
#include "tutti/params/lanes.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

// Runs the lanes of a step: seeds the random numbers from seed, step and lane, makes the forward and backward
// pass, and adds the result. All ways of training run their lanes with it. Not thread-safe.
class LaneRunner {
 public:
  // Both must outlive this. `lanes` are those of this worker.
  LaneRunner(Replica& replica, LaneSum& sum, const LaneRange& lanes)
      : replica_(replica), sum_(sum), lanes_(lanes) {}

  // Runs one lane on its batch, as the feed returns it; skips the lane if the batch has no examples.
  void run_lane(int64_t step, int64_t lane, const Batch& batch, const LaneObserver& observe);
  // Runs all lanes, in order, with batches from the queue.
  void run_step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);

  const LaneRange& lanes() const { return lanes_; }

 private:
  Batch prepared(const Batch& batch, int64_t step) const;

  Replica& replica_;
  LaneSum& sum_;
  const LaneRange lanes_;
};

}  // namespace tutti
