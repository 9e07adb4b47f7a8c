#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/optim.h>
#include <torch/types.h>

#include "tutti/params/elementwise.h"
#include "tutti/params/optimizer_options.h"

// The optimisers that OptimizerOptions can hold, for the sources of the class Optimizer.
namespace tutti::optimizer_kinds {

using torch::optim::AdagradOptions;
using torch::optim::AdagradParamState;
using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::RMSpropOptions;
using torch::optim::RMSpropParamState;
using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

// The properties of each optimiser: its class, its name, and the vectors that it keeps with the given
// options.
struct SlotView {
  std::string name;
  torch::Tensor* tensor;
};
using SlotViews = std::vector<SlotView>;

template <class Options>
struct Kind;

// The functions that are the same for all optimisers of torch::optim.
template <class Optimizer, class Options>
struct TorchKind {
  static constexpr bool kCountsSteps = false;
  static std::unique_ptr<torch::optim::Optimizer> make(
      const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& options) {
    return std::make_unique<Optimizer>(groups, options);
  }
  static void set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay) {
    static_cast<Options&>(options).weight_decay(weight_decay);
  }
};

template <class State, class Options>
SlotViews adam_slots(State& state, const Options& options) {
  SlotViews slots = {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}};
  if (options.amsgrad()) slots.push_back({"max_exp_avg_sq", &state.max_exp_avg_sq()});
  return slots;
}

template <class Options>
Json adam_json(const Options& o) {
  return {{"lr", o.lr()},
          {"betas", {std::get<0>(o.betas()), std::get<1>(o.betas())}},
          {"eps", o.eps()},
          {"weight_decay", o.weight_decay()},
          {"amsgrad", o.amsgrad()}};
}

template <class Options>
Options adam_options(const Json& json) {
  Options o(json.at("lr").get<double>());
  o.betas({json.at("betas").at(0).get<double>(), json.at("betas").at(1).get<double>()});
  o.eps(json.at("eps").get<double>());
  o.weight_decay(json.at("weight_decay").get<double>());
  o.amsgrad(json.at("amsgrad").get<bool>());
  return o;
}

template <>
struct Kind<AdamOptions> : TorchKind<torch::optim::Adam, AdamOptions> {
  using State = AdamParamState;
  static constexpr const char* kName = "adam";
  static SlotViews slots(State& state, const AdamOptions& options) { return adam_slots(state, options); }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const AdamOptions& options) { return adam_json(options); }
  static AdamOptions options(const Json& json) { return adam_options<AdamOptions>(json); }
};

template <>
struct Kind<AdamWOptions> : TorchKind<torch::optim::AdamW, AdamWOptions> {
  using State = AdamWParamState;
  static constexpr const char* kName = "adamw";
  static SlotViews slots(State& state, const AdamWOptions& options) { return adam_slots(state, options); }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const AdamWOptions& options) { return adam_json(options); }
  static AdamWOptions options(const Json& json) { return adam_options<AdamWOptions>(json); }
};

template <>
struct Kind<SGDOptions> : TorchKind<torch::optim::SGD, SGDOptions> {
  using State = SGDParamState;
  static constexpr const char* kName = "sgd";
  static SlotViews slots(State& state, const SGDOptions& options) {
    if (options.momentum() == 0) return {};
    return {{"momentum_buffer", &state.momentum_buffer()}};
  }
  static void set_step(State&, int64_t) {}
  static Json json(const SGDOptions& o) {
    return {{"lr", o.lr()},
            {"momentum", o.momentum()},
            {"dampening", o.dampening()},
            {"weight_decay", o.weight_decay()},
            {"nesterov", o.nesterov()}};
  }
  static SGDOptions options(const Json& json) {
    return SGDOptions(json.at("lr").get<double>())
        .momentum(json.at("momentum").get<double>())
        .dampening(json.at("dampening").get<double>())
        .weight_decay(json.at("weight_decay").get<double>())
        .nesterov(json.at("nesterov").get<bool>());
  }
};

template <>
struct Kind<AdagradOptions> : TorchKind<torch::optim::Adagrad, AdagradOptions> {
  using State = AdagradParamState;
  static constexpr const char* kName = "adagrad";
  static SlotViews slots(State& state, const AdagradOptions&) { return {{"sum", &state.sum()}}; }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const AdagradOptions& o) {
    return {{"lr", o.lr()},
            {"lr_decay", o.lr_decay()},
            {"weight_decay", o.weight_decay()},
            {"initial_accumulator_value", o.initial_accumulator_value()},
            {"eps", o.eps()}};
  }
  static AdagradOptions options(const Json& json) {
    return AdagradOptions(json.at("lr").get<double>())
        .lr_decay(json.at("lr_decay").get<double>())
        .weight_decay(json.at("weight_decay").get<double>())
        .initial_accumulator_value(json.at("initial_accumulator_value").get<double>())
        .eps(json.at("eps").get<double>());
  }
};

template <>
struct Kind<RMSpropOptions> : TorchKind<torch::optim::RMSprop, RMSpropOptions> {
  using State = RMSpropParamState;
  static constexpr const char* kName = "rmsprop";
  static SlotViews slots(State& state, const RMSpropOptions& options) {
    SlotViews slots = {{"square_avg", &state.square_avg()}};
    if (options.momentum() > 0) slots.push_back({"momentum_buffer", &state.momentum_buffer()});
    if (options.centered()) slots.push_back({"grad_avg", &state.grad_avg()});
    return slots;
  }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const RMSpropOptions& o) {
    return {{"lr", o.lr()},
            {"alpha", o.alpha()},
            {"eps", o.eps()},
            {"weight_decay", o.weight_decay()},
            {"momentum", o.momentum()},
            {"centered", o.centered()}};
  }
  static RMSpropOptions options(const Json& json) {
    return RMSpropOptions(json.at("lr").get<double>())
        .alpha(json.at("alpha").get<double>())
        .eps(json.at("eps").get<double>())
        .weight_decay(json.at("weight_decay").get<double>())
        .momentum(json.at("momentum").get<double>())
        .centered(json.at("centered").get<bool>());
  }
};

template <>
struct Kind<ElementwiseOptimizer> {
  using State = ElementwiseState;
  static constexpr bool kCountsSteps = true;  // also without slots
  static SlotViews slots(State& state, const ElementwiseOptimizer& options) {
    state.slots.resize(options.slots.size());
    SlotViews slots;
    for (size_t i = 0; i < options.slots.size(); ++i) slots.push_back({options.slots[i], &state.slots[i]});
    return slots;
  }
  static void set_step(State& state, int64_t step) { state.step = step; }
  static Json json(const ElementwiseOptimizer& options) {
    Json json = {{"lr", options.rate}, {"weight_decay", options.weight_decay}, {"slots", options.slots}};
    for (const auto& [name, number] : options.numbers) json[name] = number;
    return json;
  }
  static std::unique_ptr<torch::optim::Optimizer> make(
      const std::vector<torch::optim::OptimizerParamGroup>& groups, const ElementwiseOptimizer& options) {
    return std::make_unique<ElementwiseSteps>(groups, options);
  }
  static void set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay) {
    static_cast<ElementwiseGroup&>(options).weight_decay = weight_decay;
  }
};

// Only the optimiser itself knows its state (optimizer_archive.h).
template <>
struct Kind<ReplicatedOptimizer> {
  using State = ElementwiseState;
  static constexpr bool kCountsSteps = false;
  static SlotViews slots(State&, const ReplicatedOptimizer&) { return {}; }
  static void set_step(State&, int64_t) {}
  static Json json(const ReplicatedOptimizer&) { return Json::object(); }
  static std::unique_ptr<torch::optim::Optimizer> make(
      const std::vector<torch::optim::OptimizerParamGroup>& groups, const ReplicatedOptimizer& options) {
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
