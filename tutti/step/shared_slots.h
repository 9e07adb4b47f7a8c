#pragma once

#include <array>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/step/step_commit.h"

namespace tutti {

// The slots of a sharded optimiser in memory that all workers of a host share, so that the others have them
// if a worker dies, even in the middle of a step. Each worker has two copies of its slots: a step reads one
// and writes the other. So the slots before a step are whole until the next one, which begins once all
// workers have made this one (StepCommit). The memory has no name; it is freed with the last process that
// uses it. Not thread-safe.
class SharedSlots {
 public:
  // Moves the slots of the optimiser, whose sections are those of this rank. All ranks call it, with
  // optimisers after the same step. All arguments must outlive this, but the communicator's ranks may change.
  SharedSlots(comm::Communicator& comm, const Parameters& parameters, Optimizer& optimizer);

  // Makes a step with the mean gradients, on all workers or on none. After an error the parameters are those
  // before the step, and the optimiser has to be restored from state().
  void step(GradientMean& mean);
  // Returns the slots of all workers after the last step that they have made, without copies.
  Optimizer::State state() const;
  // Returns true if the parameters of this worker may be wrong (StepCommit::is_left_behind).
  bool is_left_behind() const { return commit_.is_left_behind(); }

 private:
  Optimizer::SlotVectors slots_in(const torch::Tensor& memory, size_t copy, int rank) const;

  const Parameters& parameters_;
  Optimizer& optimizer_;
  const std::vector<std::string> names_;
  const int64_t copy_bytes_;
  const std::vector<torch::Tensor> memory_;  // by rank
  const std::array<Optimizer::SlotVectors, 2> own_;
  size_t copy_ = 0;  // which one the optimiser uses
  int64_t steps_ = 0;
  StepCommit commit_;
};

}  // namespace tutti
