#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/parameters.h"
#include "tutti/params/reducer.h"

namespace tutti {

// The mean gradient of a step over the examples of all lanes of all workers, and the mean of the floating
// buffers over the lanes. A step is: for each lane of this worker begin_lane(), a backward pass, add(), or
// skip(); then finish(). Not thread-safe.
class GradientMean {
 public:
  struct Result {
    int64_t examples = 0;         // 0: nobody had any, and nothing has changed
    torch::Tensor loss_sum = {};  // over all examples: one float64, on the device
    int64_t stop = 0;             // the largest that any worker gave
  };

  // Both outlive this. Where the workers share memory, the parameters are in it (shared_allocator).
  GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes);

  LaneRange lanes() const { return reducer_.block(); }
  // What the mean loss over so many examples is multiplied by before the backward pass: so a lane gives the
  // sum. With one lane in all the mean is taken as it is: nothing to scale, to add or to divide.
  double weight(int64_t examples) const { return one_lane_ ? 1 : static_cast<double>(examples); }

  // Gradients are zero, buffers as they were before the step.
  void begin_lane();
  // The gradient vectors hold what the lane gives; `loss` is its mean loss.
  void add(const torch::Tensor& loss, int64_t examples);
  // The lane has no examples.
  void skip();
  // After the last lane: the means are in the vectors of every worker. All have to be at the same step.
  Result finish(int64_t step, int64_t stop = 0);

 private:
  void share_counters(const Reducer::Outcome& outcome);

  Parameters& parameters_;
  comm::Communicator& comm_;
  const bool one_lane_;
  const std::vector<torch::Tensor> buffers_;  // all of the module's, the floating ones as vectors
  std::vector<torch::Tensor> before_;         // what every lane starts from
  bool first_lane_ = true;
  torch::Tensor numbers_;  // of a step: the sum of losses, examples, lanes with data
  Reducer reducer_;
};

// Memory that all workers of the host see, where there is such a thing; else empty. Parameters on this device
// have to be in it.
Allocate shared_allocator(comm::Communicator& comm, torch::Device device);

// Scales the gradients so that the norm of all of them together is at most `largest`; returns what it was.
double clip_norm(Parameters& parameters, double largest);

}  // namespace tutti
