#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "tutti/base/timeline.h"
#include "tutti/cluster/context.h"
#include "tutti/data/batch.h"
#include "tutti/data/batch_queue.h"
#include "tutti/embedding/tables.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"
#include "tutti/params/precision.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/trainable.h"

namespace tutti {

namespace rpc {
class Arena;
}

// Options of a Replica.
struct ReplicaOptions {
  Precision precision = Precision::Float32;  // in which forward passes compute
  Layout layout = Layout::Contiguous;        // of four-dimensional parameters
  int64_t seed = 1;                          // of the random numbers in lanes
  torch::Device device = torch::kCPU;        // of the model and its parameters
  // Allocates the parameters' vectors (ParametersOptions). `before_allocate` is called with the parameters
  // before they are moved there: it may be memory in which the vectors of all workers have to match.
  Allocate allocate = {};
  // See `allocate`.
  std::function<void(const Parameters&, const OptimizerOptions&)> before_allocate = {};
  // The part of the parameters that the optimiser updates, out of `parts` (sections_of).
  int part = 0;
  int parts = 1;  // of the parameters
  // The parameters that a loop of the program's own has made, which computes the lanes itself: then the model
  // is empty. They must outlive the replica. Null: the replica makes the parameters of the model.
  Parameters* parameters = nullptr;
  // Calls hooks::nan_guard() before each backward pass, and so before a loss affects gradients or other
  // workers.
  bool nan_guard = false;
  // Records forward and backward; may be null. Must outlive the replica.
  Timeline* timeline = nullptr;
};

// Called for every lane of this worker, in order, before the step changes anything.
using LaneObserver = std::function<void(int64_t lane, const Batch& batch, const LossOutput& output)>;

// One copy of the model with its flat parameters and optimiser, which a strategy trains. Not thread-safe.
class Replica {
 public:
  // Moves the module to the device and its parameters into the vectors.
  Replica(Trainable model, const OptimizerOptions& optimizer, const ReplicaOptions& options);

  // Runs one lane on its batch, as the feed returns it: makes the forward and backward pass, and adds the
  // result to the sum; skips the lane if the batch has no examples. Random numbers depend only on seed, lane
  // and step. All ways of training run their lanes with it.
  void run_lane(int64_t step, int64_t lane, const Batch& batch, LaneSum& sum, const LaneObserver& observe);

  // Returns the predictions in evaluation mode, without gradients, in float32.
  torch::Tensor predict(const Batch& batch);
  // Returns the results of a function of the batch, computed like predictions. Without a function, returns
  // the predictions.
  using Function = std::function<std::vector<torch::Tensor>(const Batch&)>;
  std::vector<torch::Tensor> evaluate(const Batch& batch, const Function& function);
  const Trainable& model() const { return model_; }
  // Returns the mean loss of the batch, and the predictions that the loss function returns with it, in
  // float32, in evaluation mode and without gradients. Requires a loss function.
  LossOutput evaluate_loss(const Batch& batch);
  // Returns the batch in the form that the model takes: on the device, images in the layout.
  Batch prepare(const Batch& batch) const;

  torch::nn::Module& module() { return *model_.module; }
  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  // The tables whose rows are spread over the workers.
  embedding::Tables& tables() { return tables_; }
  const embedding::Tables& tables() const { return tables_; }
  const ReplicaOptions& options() const { return options_; }

 private:
  template <class Body>
  auto in_evaluation(const Batch& batch, const Body& body);

  Trainable model_;
  ReplicaOptions options_;
  const std::unique_ptr<Parameters> own_parameters_;  // null if the program has made them
  Parameters& parameters_;
  Optimizer optimizer_;
  embedding::Tables tables_;
};

// Returns the options that the context's configuration asks for.
ReplicaOptions replica_options(const Context& context, Layout layout);
// Places the replica's vectors, if they are on the CPU, where servers on the same host can read them.
ReplicaOptions in_arena(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena);

// Puts the module into evaluation mode for the duration of the scope. Afterwards each submodule has the mode
// that it had before, such as a batch norm that is not trained.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  struct Mode {
    torch::nn::Module& module;
    bool is_training;
  };
  std::vector<Mode> before_;  // a module comes before its submodules; empty: none was changed
};

// Returns the next batch of the queue, which must not be at its end.
Batch take_batch(data::BatchQueue& queue, int64_t step);

}  // namespace tutti
