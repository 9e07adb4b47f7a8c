#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <torch/types.h>

#include "tutti/base/timeline.h"
#include "tutti/data/batch.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/train/trainable.h"

namespace tutti {

enum class Precision { Float32, BFloat16 };

// Looks at the loss of a lane before the backward pass, and so before anybody else gets anything of it; what
// it throws ends the step.
using LossCheck = std::function<void(const Parameters& parameters, int64_t step, int64_t lane,
                                     const Batch& batch, const LossOutput& output)>;

struct ReplicaOptions {
  Precision precision = Precision::Float32;
  Layout layout = Layout::Contiguous;
  int64_t seed = 1;
  torch::Device device = torch::kCPU;
  // Where the parameters' vectors live (ParametersOptions), and what is called with them before they go
  // there: it may be memory in which those of all workers have to be alike.
  Allocate allocate = {};
  std::function<void(const Parameters&, const OptimizerOptions&)> before_allocate = {};
  // The optimiser has this part of so many of the parameters (parts_of).
  int part = 0;
  int parts = 1;
  LossCheck check_loss = {};
  // Where forward and backward are noted down; may be null. Outlives the replica.
  Timeline* timeline = nullptr;
};

// One copy of the model with its flat parameters and optimiser: what a strategy drives. Not thread-safe.
class Replica {
 public:
  // Moves the module to the device and its parameters into the vectors.
  Replica(Trainable model, const OptimizerOptions& optimizer, const ReplicaOptions& options);

  // Forward and backward of one lane's batch: the gradient of the mean loss times `weight` adds up in the
  // gradient vectors. What is random in it depends on seed, lane and step alone. The batch must have
  // examples. `before_backward` hears of the loss between the two.
  LossOutput run_lane(int64_t step, int64_t lane, const Batch& batch, double weight,
                      const std::function<void(const torch::Tensor& loss)>& before_backward);

  // Predictions in evaluation mode, without gradients, in float32.
  torch::Tensor predict(const Batch& batch);

  // The batch as the model takes it: on the device, images in the layout.
  Batch prepare(const Batch& batch) const;

  torch::nn::Module& module() { return *model_.module; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  const ReplicaOptions& options() const { return options_; }

 private:
  Trainable model_;
  ReplicaOptions options_;
  Parameters parameters_;
  Optimizer optimizer_;
};

Precision parse_precision(const std::string& text);

// Channels-last where the module has convolutions over images: their kernels are then faster
// (docs/benchmarks.md).
Layout fastest_layout(const torch::nn::Module& module);
// As --layout says.
Layout layout_of(const std::string& text, const torch::nn::Module& module);

}  // namespace tutti
