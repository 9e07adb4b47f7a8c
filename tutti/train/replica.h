#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <torch/types.h>

#include "tutti/base/timeline.h"
#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/train/trainable.h"

namespace tutti {

enum class Precision { Float32, BFloat16 };

// Checks the loss of a lane before the backward pass, and so before it affects gradients or other workers. An
// exception ends the step.
using LossCheck = std::function<void(const Parameters& parameters, int64_t step, int64_t lane,
                                     const Batch& batch, const LossOutput& output)>;

struct ReplicaOptions {
  Precision precision = Precision::Float32;
  Layout layout = Layout::Contiguous;
  int64_t seed = 1;
  torch::Device device = torch::kCPU;
  // Allocates the parameters' vectors (ParametersOptions). `before_allocate` is called with the parameters
  // before they are moved there: it may be memory in which the vectors of all workers have to match.
  Allocate allocate = {};
  std::function<void(const Parameters&, const OptimizerOptions&)> before_allocate = {};
  // The part of the parameters that the optimiser updates, out of `parts` (parts_of).
  int part = 0;
  int parts = 1;
  LossCheck check_loss = {};
  // Records forward and backward; may be null. Must outlive the replica.
  Timeline* timeline = nullptr;
};

// One copy of the model with its flat parameters and optimiser, which a strategy trains. Not thread-safe.
class Replica {
 public:
  // Moves the module to the device and its parameters into the vectors.
  Replica(Trainable model, const OptimizerOptions& optimizer, const ReplicaOptions& options);

  // Makes the forward and backward pass of one lane, and adds the gradient of the mean loss times `weight` to
  // the gradient vectors. Random numbers depend only on seed, lane and step. The batch must have examples.
  // `before_backward` is called with the loss between the two passes.
  LossOutput run_lane(int64_t step, int64_t lane, const Batch& batch, double weight,
                      const std::function<void(const torch::Tensor& loss)>& before_backward);

  // Returns the predictions in evaluation mode, without gradients, in float32.
  torch::Tensor predict(const Batch& batch);

  // Returns the mean loss of the batch in evaluation mode, without gradients, as float64.
  torch::Tensor evaluate_loss(const Batch& batch);

  // Returns the batch in the form that the model takes: on the device, images in the layout.
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
// Returns the options that the context's configuration asks for.
ReplicaOptions replica_options(const Context& context, const torch::nn::Module& module);

}  // namespace tutti
