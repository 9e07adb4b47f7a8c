#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/params/ftrl.h"
#include "tutti/params/parameter_groups.h"

namespace tutti {

// The arguments of ElementwiseOptimizer::update: a chunk of the parameters as one-dimensional tensors of the
// same length. Values and slots are changed in place; the gradients must not be changed.
struct ElementwiseUpdate {
  const torch::Tensor values;
  const torch::Tensor grads;
  const std::vector<torch::Tensor>& slots;  // in the order of their names; zeros before the first step
  double rate = 0;                          // the learning rate of this step for the parameters' group
  double weight_decay = 0;                  // of the group
  int64_t step = 1;                         // the first is 1
};

// An optimiser of one's own that computes each element from the same element of gradients and slots alone:
//   tutti::ElementwiseOptimizer sign_sgd = {.name = "sign_sgd", .rate = 1e-3,
//                                           .update = [](const tutti::ElementwiseUpdate& u) {
//                                             u.values.sub_(u.grads.sign() * u.rate);
//                                           }};
// Like an optimiser of torch::optim it can be sharded over workers, has groups and schedules, and its slots
// are saved by name. Parameter servers have to know it too (Program::optimizers).
struct ElementwiseOptimizer {
  std::string name;                     // in checkpoints and errors
  double rate = 0;                      // the learning rate
  double weight_decay = 0;              // passed to update(), which has to apply it
  std::vector<std::string> slots = {};  // the names of the vectors that it keeps, such as "exp_avg"
  // Other options, such as betas: compared between workers, and recorded.
  std::map<std::string, double> numbers = {};
  std::function<void(const ElementwiseUpdate&)> update = {};
};

// Any optimiser derived from torch::optim::Optimizer. Every worker makes the whole update with the same
// gradients, so it cannot be sharded, and parameter servers cannot make it. To be saved in checkpoints it has
// to implement save() and load(). Groups can only freeze parameters; `make` may build groups of its own,
// whose learning rates keep their proportions to the rate of the first group under a schedule.
struct ReplicatedOptimizer {
  std::string name;  // in checkpoints and errors
  // Takes the trained parameters, in the order of Parameters::trained().
  std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<torch::Tensor>&)> make = {};
};

// A choice of optimiser, as in Trainer(..., torch::optim::AdamOptions(1e-4), ...), or with groups of
// parameters: Trainer(..., {torch::optim::AdamWOptions(1e-4), {{.names = "*.bias", .weight_decay = 0}}},
// ...). All but ReplicatedOptimizer work element by element, so any chunk of a vector can be updated on its
// own with the same bits.
struct OptimizerOptions {
  using Kind = std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                            torch::optim::AdagradOptions, torch::optim::RMSpropOptions, FtrlOptions,
                            ElementwiseOptimizer, ReplicatedOptimizer>;
  // True if a variant has these options as one of its kinds.
  template <class Options, class Variant>
  struct IsIn;
  // True if a variant has these options as one of its kinds.
  template <class Options, class... Kinds>
  struct IsIn<Options, std::variant<Kinds...>> : std::disjunction<std::is_same<Options, Kinds>...> {};

  // Implicit, so that each kind of options can be used by itself.
  template <class Options>
  requires(IsIn<Options, Kind>::value)
      OptimizerOptions(Options options, std::vector<ParameterGroup> with_groups = {})
      : kind(std::move(options)), groups(std::move(with_groups)) {}

  bool is_replicated() const { return std::holds_alternative<ReplicatedOptimizer>(kind); }

  Kind kind;                           // the optimiser with its options
  std::vector<ParameterGroup> groups;  // other options for some of the parameters
};

// "adam", "sgd", or the name of an optimiser of one's own.
std::string name_of(const OptimizerOptions& options);

// Throws InvalidArgument if an option is out of range: a learning rate or weight decay below 0, a beta of 1
// of Adam, a number that is not finite, or an optimiser of one's own that is not valid.
void require_in_range(const OptimizerOptions& options);
// Throws InvalidArgument for a ReplicatedOptimizer; `where` is what needs parts of vectors to be updated on
// their own, such as "--optimizer-state sharded".
void require_elementwise(const OptimizerOptions& options, std::string_view where);
// Throws InvalidArgument if the learning rate is negative or not finite.
void require_learning_rate(const std::string& optimizer, double rate);

// Convert to and from the form in a checkpoint's manifest: {"name": "adam", "lr": 0.0001, ...}. `own` are the
// optimisers of the program that the JSON may name; their rate and weight decay are taken from
// it. Throws InvalidArgument if the optimiser is unknown, or if its slots or numbers differ.
Json to_json(const OptimizerOptions& options);
OptimizerOptions optimizer_from_json(const Json& json, std::span<const ElementwiseOptimizer> own = {});

}  // namespace tutti
