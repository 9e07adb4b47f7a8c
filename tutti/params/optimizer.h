#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tutti/base/json.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Any of these is a choice of optimiser: Trainer(..., torch::optim::AdamOptions(1e-4), ...). All of them work
// element by element, so that any slice of a vector can be updated on its own, with the same bits.
using OptimizerOptions =
    std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                 torch::optim::AdagradOptions, torch::optim::RMSpropOptions>;

// torch::optim on flat vectors. It is run on slices of the vectors that fit into the cache: torch::optim
// makes several passes over a tensor (ten for Adam), and in this way all but one of them stay in the cache
// (bench/optimizer.cc). Updates the values in place and leaves the gradients alone. Not thread-safe.
class Optimizer {
 public:
  // One vector of the optimiser's memory, such as "exp_avg": as long as the values of the stretch it belongs
  // to.
  struct Slot {
    std::string name;
    size_t stretch;
    torch::Tensor vector;
  };

  Optimizer(std::vector<ValuesAndGrads> stretches, const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();

  // "adam", "sgd", ...
  std::string name() const;
  // As given; a learning rate that was set later is not in them.
  const OptimizerOptions& options() const { return options_; }
  double learning_rate() const;
  void set_learning_rate(double rate);
  // How often step() was called, restored ones included.
  int64_t steps() const { return steps_; }

  // Copies of the slots that there are: none before the first step.
  std::vector<Slot> slots() const;
  // Continues from slots() of an optimiser of the same kind over the same values, after `steps` steps. Slots
  // that are missing or of another length are an InvalidArgument.
  void restore(int64_t steps, std::span<const Slot> slots);

  // How many elements are updated at a time, on the CPU and with one thread.
  static constexpr int64_t kSliceElements = 65536;

 private:
  struct Slice {
    size_t stretch;
    int64_t offset;
    torch::Tensor values;
  };

  std::vector<ValuesAndGrads> stretches_;
  OptimizerOptions options_;
  std::vector<Slice> slices_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t steps_ = 0;
};

// The options as they go into a checkpoint's manifest: {"name": "adam", "lr": 0.0001, ...}.
Json to_json(const OptimizerOptions& options);

}  // namespace tutti
