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

// A worker's lanes of a step, one after the other, and the sums of what they give. Not thread-safe.
class LaneRunner {
 public:
  // Which lanes, and which leaves of a tree of so many they are.
  struct Place {
    LaneRange lanes;
    LaneRange leaves;
    int64_t of = 1;
  };

  // Both outlive this. Summed are `gradients`, which are the replica's, whole or in parts; then the buffers
  // and the numbers of the vectors.
  LaneRunner(Replica& replica, LaneVectors& vectors, std::vector<torch::Tensor> gradients,
             const Place& place);

  void begin_step(int64_t step);
  // The next lane's, as the replica prepares it; one without examples is skipped.
  void run(const Batch& batch, const LaneObserver& observe);
  // Of all its lanes: what could be added here.
  std::vector<TreeSum::Subtree> finish();

  // All lanes from the queue.
  std::vector<TreeSum::Subtree> run_step(int64_t step, data::BatchQueue& queue, const LaneObserver& observe);

  const LaneRange& lanes() const { return place_.lanes; }

 private:
  Replica& replica_;
  LaneVectors& vectors_;
  const Place place_;
  TreeSum sum_;
  int64_t step_ = 0;
  int64_t lane_ = 0;  // the next
};

// The replica's own, one vector a block.
std::vector<torch::Tensor> gradients_of(const Parameters& parameters);

}  // namespace tutti
