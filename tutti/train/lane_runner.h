#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/lane_vectors.h"
#include "tutti/params/lanes.h"
#include "tutti/params/tree_sum.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategy.h"

namespace tutti {

// Runs a worker's lanes of a step, one after the other, and sums their results. Not thread-safe.
class LaneRunner {
 public:
  // The lanes of this worker, and the leaves that they are in a tree with `of` leaves.
  struct Place {
    LaneRange lanes;
    LaneRange leaves;
    int64_t of = 1;
  };

  // Replica and vectors must outlive this. Sums `gradients`, which are the replica's, whole or in parts, and
  // then the buffers and the numbers of the vectors.
  LaneRunner(Replica& replica, LaneVectors& vectors, std::vector<torch::Tensor> gradients,
             const Place& place);

  void begin_step(int64_t step);
  // Runs the next lane on its batch, as prepared by the replica; skips the lane if the batch has no examples.
  void run(const Batch& batch, const LaneObserver& observe);
  // Returns the sums of all lanes: the subtrees that can be computed on this worker.
  std::vector<TreeSum::Subtree> finish();

  // Runs all lanes with batches from the queue.
  std::vector<TreeSum::Subtree> run_step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);

  const LaneRange& lanes() const { return place_.lanes; }

 private:
  Replica& replica_;
  LaneVectors& vectors_;
  const Place place_;
  TreeSum sum_;
  int64_t step_ = 0;
  int64_t lane_ = 0;  // the next lane
};

// Returns the replica's own gradients, one vector per block.
std::vector<torch::Tensor> gradients_of(const Parameters& parameters);

}  // namespace tutti
