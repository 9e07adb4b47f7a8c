#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/lane_vectors.h"
#include "tutti/params/tree_sum.h"

namespace tutti {

// Adds up the results of a worker's lanes, one after the other, in a step. For each lane either begin_lane(),
// forward pass, begin_backward(), one backward pass, add(), or skip().
class LaneSum {
 public:
  virtual ~LaneSum() = default;
  // Returns the factor for a lane's mean loss before the backward pass, so that the lane gives the sum. With
  // one lane in all, the mean is used as it is, and nothing has to be scaled, added or divided.
  virtual double weight(int64_t examples) const = 0;
  // Sets the gradients to zero and the buffers to their values before the step.
  virtual void begin_lane() = 0;
  // Takes the lane's mean loss, a single number. All gradients of the lane come from the one backward pass
  // that follows, or are present already.
  virtual void begin_backward(const torch::Tensor& loss, int64_t examples) = 0;
  // Adds the lane, whose gradients are complete.
  virtual void add() = 0;
  // Marks the lane as having no examples.
  virtual void skip() = 0;
};

// The sum over the lanes of this worker, for another task to complete: a server or a master. Not thread-safe.
class LocalSum final : public LaneSum {
 public:
  // `vectors` must outlive this. Sums `gradients`, which are those of the parameters, whole or in parts, and
  // then the buffers and the numbers of the vectors. `leaves` are the lanes' places in a tree with `of`
  // leaves.
  LocalSum(LaneVectors& vectors, std::vector<torch::Tensor> gradients, const LaneRange& leaves, int64_t of);

  void begin_step();
  double weight(int64_t examples) const override { return vectors_.weight(examples); }
  void begin_lane() override { vectors_.begin_lane(); }
  void begin_backward(const torch::Tensor& loss, int64_t examples) override {
    vectors_.count(loss, examples);
  }
  void add() override;
  void skip() override { sum_.skip(); }
  // Returns the sums of all lanes: the subtrees that can be computed on this worker.
  std::vector<TreeSum::Subtree> finish();

 private:
  LaneVectors& vectors_;
  TreeSum sum_;
};

// Returns the parameters' own gradients, one vector per block.
std::vector<torch::Tensor> gradients_of(const Parameters& parameters);

}  // namespace tutti
