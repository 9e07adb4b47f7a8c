#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/backward_watch.h"
#include "tutti/params/parameters.h"
#include "tutti/params/reducer.h"

namespace tutti {

// The mean gradient of a step over the examples of all lanes of all workers, and the mean of the floating
// buffers over the lanes. Other buffers are those of a worker's own last lane: the same everywhere if they
// count batches, and not shared if they depend on the data. A step is begin_step(); for each lane of this
// worker begin_lane(), forward, begin_backward(), one backward pass, add(), or skip(); then finish().
// Gradients are sent while the last backward pass still runs, where that is of use: from its begin_backward()
// on until finish() gradients and communicator are in use. A lane that fails before add() can be begun again,
// a step too; once gradients are being sent neither can (Reducer). Not thread-safe.
class GradientMean {
 public:
  struct Result {
    int64_t examples = 0;         // 0: nobody had any, and nothing has changed
    torch::Tensor loss_sum = {};  // over all examples: one float64, on the device
    Wishes wishes;
  };

  // Both outlive this. Where the workers share memory, the parameters are in it (move_to_shared_memory). One
  // that has been frozen since they were made is an InvalidArgument.
  GradientMean(Parameters& parameters, comm::Communicator& comm, int64_t lanes,
               const ReducerOptions& options = {});

  LaneRange lanes() const { return reducer_.block(); }
  // "tree" or "fast".
  std::string name() const { return reducer_.name(); }
  // What the mean loss over so many examples is multiplied by before the backward pass: so a lane gives the
  // sum. With one lane in all the mean is taken as it is: nothing to scale, to add or to divide.
  double weight(int64_t examples) const { return one_lane_ ? 1 : static_cast<double>(examples); }

  // Buffers are again what they were before a step that was broken off (but with one lane in all, where they
  // are what its forward pass has left).
  void begin_step(int64_t step, const Wishes& wishes = {});
  // Gradients are zero, buffers as they were before the step.
  void begin_lane();
  // The lane's mean loss, one number. All its gradients come from the one backward pass that follows, or are
  // there already.
  void begin_backward(const torch::Tensor& loss, int64_t examples);
  // Gradients are being sent: only add(), where it is yet to come, and finish() may follow.
  bool is_sending() const { return reducer_.is_open(); }
  // The gradients are there.
  void add();
  // The lane has no examples.
  void skip();
  // After the last lane: the means are in the vectors of every worker; where they are scattered, its own part
  // is. All have to be at the same step.
  Result finish();

  // Limits the norm of the mean gradient; returns what it was.
  double clip_norm(double largest);
  // Where gradients are scattered, each worker has updated its part of the parameters: everybody gets all.
  void share_update();

 private:
  void restore_buffers();
  void share_counters(const ReduceOutcome& outcome);
  void before_gradient(size_t parameter) const;
  void on_gradient(size_t parameter);

  Parameters& parameters_;
  comm::Communicator& comm_;
  const bool one_lane_;
  const bool scatter_;
  const std::vector<torch::Tensor> buffers_;  // all of the module's, the floating ones as vectors
  std::vector<torch::Tensor> before_;         // what every lane starts from
  // In which the floating buffers are summed: in float64, where the sum of equal float32 is exact. So what is
  // the same in all lanes, because nobody or everybody together has changed it, keeps its bits at any number
  // of lanes.
  const std::vector<torch::Tensor> exact_;
  bool lane_begun_ = false;  // in a step that is not finished: `before_` holds
  int64_t step_ = 0;
  torch::Tensor numbers_;  // of a step: the sum of losses, examples, lanes with data
  Reducer reducer_;

  // While a backward pass is watched: which gradients are there, and how many each bucket waits for.
  std::vector<bool> heard_;
  std::vector<int> missing_;
  bool watching_ = false;
  std::optional<BackwardWatch> watch_;  // where it is of use
};

// Memory that all workers of the host see, where there is such a thing; else empty. Parameters on this device
// have to be in it.
Allocate shared_allocator(comm::Communicator& comm, torch::Device device);
// Moves them there. It has to be known before that those of all workers are alike (require_same_plan).
void move_to_shared_memory(Parameters& parameters, comm::Communicator& comm);

// InvalidArgument unless it is one number that depends on something that is trained.
void require_mean(const torch::Tensor& loss);

}  // namespace tutti
