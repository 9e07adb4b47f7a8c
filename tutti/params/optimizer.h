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
  // A part of one of the vectors that the optimiser keeps, such as "exp_avg".
  struct Slot {
    std::string name;
    size_t block;    // of the parameters that it belongs to
    int64_t offset;  // where in it the part begins
    torch::Tensor vector;
  };

  // All that it has learnt.
  struct State {
    int64_t steps = 0;
    std::vector<Slot> slots;
  };

  // Of all parameters, or of a part of them.
  Optimizer(std::vector<Stretch> stretches, const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  // With these gradients in place of the stretches' own: a vector for each, as long as it.
  void step(std::span<const torch::Tensor> gradients);

  // "adam", "sgd", ...
  std::string name() const;
  // As given; a learning rate that was set later is not in them.
  const OptimizerOptions& options() const { return options_; }
  double learning_rate() const;
  void set_learning_rate(double rate);
  // How often step() was called, restored ones included.
  int64_t steps() const { return steps_; }

  // A copy: of each slot a part for every stretch, none before the first step.
  State state() const { return {steps_, slots()}; }
  // Continues where an optimiser of the same kind was, over these stretches or more; before the first step as
  // if it were new. The learning rate stays. Where no slot covers a stretch it is an InvalidArgument.
  void restore(const State& state);

  // How many elements are updated at a time, on the CPU and with one thread.
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

// The options as they go into a checkpoint's manifest: {"name": "adam", "lr": 0.0001, ...}.
Json to_json(const OptimizerOptions& options);
OptimizerOptions optimizer_from_json(const Json& json);

}  // namespace tutti
