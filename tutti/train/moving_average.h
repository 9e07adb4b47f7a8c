#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

#include "tutti/params/parameters.h"
#include "tutti/train/hook.h"
#include "tutti/train/state_part.h"

namespace tutti {

// An exponential moving average of the parameters, which often generalises better than the last values:
// after each step, average = decay * average + (1 - decay) * value. It begins with the values before the
// first step. Buffers are not averaged. Not thread-safe.
class MovingAverage {
 public:
  // The parameters must outlive this. Throws InvalidArgument unless 0 < decay < 1.
  MovingAverage(Parameters& parameters, double decay);

  // Begins the average with the current values, unless a checkpoint has been restored.
  void begin();
  void update();
  // Calls `body` while the parameters have the averaged values.
  void with_average(const std::function<void()>& body);
  // The average as a part of a run's state: tensors with the names of the parameters.
  StatePart part();

 private:
  Snapshot snapshot() const;
  void restore(const Snapshot& snapshot);

  Parameters& parameters_;
  const double decay_;
  std::vector<torch::Tensor> average_;  // one vector per block; empty before begin()
};

}  // namespace tutti
