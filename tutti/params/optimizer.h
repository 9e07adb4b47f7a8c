#pragma once

#include <cstdint>
#include <functional>
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

// A choice of optimiser, as in Trainer(..., torch::optim::AdamOptions(1e-4), ...). All of them work element
// by element, so any slice of a vector can be updated on its own with the same bits.
using OptimizerOptions =
    std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                 torch::optim::AdagradOptions, torch::optim::RMSpropOptions>;

// torch::optim on flat vectors. It is run on slices of the vectors that fit into the cache: torch::optim
// makes several passes over a tensor (ten for Adam), and in this way all but one of them stay in the cache
// (bench/optimizer.cc). Updates the values in place and leaves the gradients alone. Not thread-safe.
class Optimizer {
 public:
  // A part of one of the vectors that the optimiser keeps, such as "exp_avg".
  struct Slot {
    std::string name;
    size_t block;    // the block of the parameters
    int64_t offset;  // where in the block the part begins
    torch::Tensor vector;
  };

  // Everything that the optimiser has learnt.
  struct State {
    int64_t steps = 0;
    std::vector<Slot> slots;
  };

  // Optimises all parameters, or a part of them. Throws InvalidArgument if an option is out of range: a
  // learning rate or weight decay below 0, a beta of 1, a number that is not finite.
  Optimizer(std::vector<Stretch> stretches, const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  // Makes a step with these gradients, one vector per stretch, instead of the stretches' own.
  void step(std::span<const torch::Tensor> gradients);

  // "adam", "sgd", ...
  std::string name() const;
  // The options as given, without a learning rate that was set later.
  const OptimizerOptions& options() const { return options_; }
  double learning_rate() const;
  // Throws InvalidArgument if the rate is negative or not finite.
  void set_learning_rate(double rate);
  // The number of calls of step(), including those before a restore.
  int64_t steps() const { return steps_; }

  // Returns a copy. Each slot has a part for every stretch; before the first step there are no slots.
  State state() const { return {steps_, slots()}; }
  // Continues from the state of an optimiser of the same kind over these stretches or more. A state of 0
  // steps resets this one. The learning rate is kept. Throws InvalidArgument if no slot covers a stretch.
  void restore(const State& state);

  // The number of elements that are updated at a time, on the CPU and with one thread.
  static constexpr int64_t kSliceElements = 65536;

 private:
  void use_gradients(const std::function<torch::Tensor(size_t stretch)>& of);
  std::vector<Slot> slots() const;
  std::unique_ptr<torch::optim::Optimizer> make() const;

  struct Slice {
    size_t stretch;
    int64_t offset;
    torch::Tensor values;
  };

  std::vector<Stretch> stretches_;
  OptimizerOptions options_;
  std::vector<Slice> slices_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  int64_t steps_ = 0;
};

// Convert to and from the form in a checkpoint's manifest: {"name": "adam", "lr": 0.0001, ...}.
Json to_json(const OptimizerOptions& options);
OptimizerOptions optimizer_from_json(const Json& json);

}  // namespace tutti
