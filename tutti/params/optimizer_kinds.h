#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim.h>
#include <torch/types.h>

#include "tutti/params/adam.h"
#include "tutti/params/optimizer_options.h"

// The optimisers that OptimizerOptions can hold, for the sources of the class Optimizer.
namespace tutti::optimizer_kinds {

// One of the vectors that an optimiser keeps for a chunk of the parameters.
struct SlotView {
  std::string name;
  torch::Tensor* tensor;
  torch::Tensor* old = nullptr;  // where the next step reads the vector if it is set; null: it reads `tensor`
};
using SlotViews = std::vector<SlotView>;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// The properties of each optimiser: its class, its name, its options, and the vectors that it keeps with
// them. fields() of an optimiser of torch::optim calls a function with the name and value of each option.
template <class Options>
struct Kind;

// The functions that are the same for all optimisers of torch::optim.
template <class Optimizer, class ParamState, class Options>
struct TorchKind {
  using State = ParamState;
  static void set_step(State& state, int64_t step) {
    if constexpr (requires { state.step(step); }) state.step(step);
  }
  static Json json(const Options& options) {
    Json json = Json::object();
    Kind<Options>::fields(options, [&](const char* name, const auto& value) { json[name] = value; });
    return json;
  }
  static Options options(const Json& json) {
    Options options(0.0);
    Kind<Options>::fields(options, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    return options;
  }
  static std::unique_ptr<torch::optim::Optimizer> make(const ParamGroups& groups, const Options& options) {
    return std::make_unique<Optimizer>(groups, options);
  }
  static void set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay) {
    static_cast<Options&>(options).weight_decay(weight_decay);
  }
};

template <class Optimizer, class ParamState, class Options>
struct AdamKind : TorchKind<Optimizer, ParamState, Options> {
  static SlotViews slots(ParamState& state, const Options& options) {
    SlotViews slots = {{"exp_avg", &state.exp_avg(), &state.old_exp_avg},
                       {"exp_avg_sq", &state.exp_avg_sq(), &state.old_exp_avg_sq}};
    if (options.amsgrad()) slots.push_back({"max_exp_avg_sq", &state.max_exp_avg_sq()});
    return slots;
  }
  template <class AnyOptions, class Visit>
  static void fields(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
};

template <>
struct Kind<torch::optim::AdamOptions>
    : AdamKind<Adam, AdamState<torch::optim::AdamParamState>, torch::optim::AdamOptions> {
  static constexpr const char* kName = "adam";
};

template <>
struct Kind<torch::optim::AdamWOptions>
    : AdamKind<AdamW, AdamState<torch::optim::AdamWParamState>, torch::optim::AdamWOptions> {
  static constexpr const char* kName = "adamw";
};

template <>
struct Kind<torch::optim::SGDOptions>
    : TorchKind<torch::optim::SGD, torch::optim::SGDParamState, torch::optim::SGDOptions> {
  static constexpr const char* kName = "sgd";
  static SlotViews slots(State& state, const torch::optim::SGDOptions& options) {
    if (options.momentum() == 0) return {};
    return {{"momentum_buffer", &state.momentum_buffer()}};
  }
  template <class AnyOptions, class Visit>
  static void fields(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
};

template <>
struct Kind<torch::optim::AdagradOptions>
    : TorchKind<torch::optim::Adagrad, torch::optim::AdagradParamState, torch::optim::AdagradOptions> {
  static constexpr const char* kName = "adagrad";
  static SlotViews slots(State& state, const torch::optim::AdagradOptions&) {
    return {{"sum", &state.sum()}};
  }
  template <class AnyOptions, class Visit>
  static void fields(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
};

template <>
struct Kind<torch::optim::RMSpropOptions>
    : TorchKind<torch::optim::RMSprop, torch::optim::RMSpropParamState, torch::optim::RMSpropOptions> {
  static constexpr const char* kName = "rmsprop";
  static SlotViews slots(State& state, const torch::optim::RMSpropOptions& options) {
    SlotViews slots = {{"square_avg", &state.square_avg()}};
    if (options.momentum() > 0) slots.push_back({"momentum_buffer", &state.momentum_buffer()});
    if (options.centered()) slots.push_back({"grad_avg", &state.grad_avg()});
    return slots;
  }
  template <class AnyOptions, class Visit>
  static void fields(AnyOptions& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
};

// The state that an ElementwiseOptimizer keeps for one chunk of the parameters.
struct ElementwiseState final : torch::optim::OptimizerCloneableParamState<ElementwiseState> {
  int64_t step = 0;
  std::vector<torch::Tensor> slots;
};

// Its steps are made as by an ElementwiseOptimizer whose slots do not begin with zeros.
template <>
struct Kind<FtrlOptions> {
  static constexpr const char* kName = "ftrl";
  using State = ElementwiseState;
  static SlotViews slots(State& state, const FtrlOptions& options);
  static void set_step(State& state, int64_t step) { state.step = step; }
  static Json json(const FtrlOptions& options);
  static FtrlOptions options(const Json& json);
  static std::unique_ptr<torch::optim::Optimizer> make(const ParamGroups& groups, const FtrlOptions& options);
  static void set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay);
};

template <>
struct Kind<ElementwiseOptimizer> {
  using State = ElementwiseState;
  static SlotViews slots(State& state, const ElementwiseOptimizer& options);
  static void set_step(State& state, int64_t step) { state.step = step; }
  static Json json(const ElementwiseOptimizer& options);
  static std::unique_ptr<torch::optim::Optimizer> make(const ParamGroups& groups,
                                                       const ElementwiseOptimizer& options);
  static void set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay);
};

// Makes two steps on numbers of its own, and throws InvalidArgument if a part of a vector gets other bits
// than in the whole vector, or if the gradients were changed.
void require_elementwise(const ElementwiseOptimizer& own);

// Only the optimiser itself knows its state, and saves it in an archive.
template <>
struct Kind<ReplicatedOptimizer> {
  using State = ElementwiseState;
  static SlotViews slots(State&, const ReplicatedOptimizer&) { return {}; }
  static void set_step(State&, int64_t) {}
  static Json json(const ReplicatedOptimizer&) { return Json::object(); }
  static std::unique_ptr<torch::optim::Optimizer> make(const ParamGroups& groups,
                                                       const ReplicatedOptimizer& options) {
    return options.make(groups.front().params());
  }
  static void set_weight_decay(torch::optim::OptimizerOptions&, double) {}
};

template <class Options>
std::string name_of(const Options& options) {
  if constexpr (requires { options.name; })
    return options.name;
  else
    return Kind<Options>::kName;
}

// Calls use(options, Kind<Options>()) with the alternative that the variant holds.
template <class Use>
decltype(auto) with_kind(const OptimizerOptions& options, Use use) {
  return std::visit(
      [&](const auto& o) -> decltype(auto) { return use(o, Kind<std::decay_t<decltype(o)>>()); },
      options.kind);
}

}  // namespace tutti::optimizer_kinds
