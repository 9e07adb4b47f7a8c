#include "tutti/params/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/torch_compat.h"

namespace tutti {
namespace {

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
  const char* name;
  torch::Tensor* tensor;
};
using SlotViews = std::vector<SlotView>;

template <class Options>
struct Kind;

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
struct Kind<AdamOptions> {
  using Optimizer = torch::optim::Adam;
  using State = AdamParamState;
  static constexpr const char* kName = "adam";
  static SlotViews slots(State& state, const AdamOptions& options) { return adam_slots(state, options); }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const AdamOptions& options) { return adam_json(options); }
  static AdamOptions options(const Json& json) { return adam_options<AdamOptions>(json); }
};

template <>
struct Kind<AdamWOptions> {
  using Optimizer = torch::optim::AdamW;
  using State = AdamWParamState;
  static constexpr const char* kName = "adamw";
  static SlotViews slots(State& state, const AdamWOptions& options) { return adam_slots(state, options); }
  static void set_step(State& state, int64_t step) { state.step(step); }
  static Json json(const AdamWOptions& options) { return adam_json(options); }
  static AdamWOptions options(const Json& json) { return adam_options<AdamWOptions>(json); }
};

template <>
struct Kind<SGDOptions> {
  using Optimizer = torch::optim::SGD;
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
struct Kind<AdagradOptions> {
  using Optimizer = torch::optim::Adagrad;
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
struct Kind<RMSpropOptions> {
  using Optimizer = torch::optim::RMSprop;
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

// Calls use(options, Kind<Options>()) with the alternative that the variant holds.
template <class Use>
decltype(auto) with_kind(const OptimizerOptions& options, Use use) {
  return std::visit(
      [&](const auto& o) -> decltype(auto) { return use(o, Kind<std::decay_t<decltype(o)>>()); }, options);
}

[[noreturn]] void fail_option(std::string_view optimizer, std::string_view option, double value,
                              std::string_view range) {
  fail(ErrorKind::InvalidArgument, "the optimiser {}: {} is {}, expected {}", optimizer, option, value,
       range);
}

// Checks the ranges of PyTorch's documentation. The JSON contains all numeric options.
void require_in_range(const OptimizerOptions& options) {
  const Json json = to_json(options);
  const auto name = json.at("name").get<std::string>();
  for (const auto& [option, value] : json.items()) {
    for (const Json& number : value.is_array() ? value : Json::array({value})) {
      if (!number.is_number()) continue;
      const auto found = number.get<double>();
      const bool may_be_negative = option == "dampening";
      if (!std::isfinite(found) || (found < 0 && !may_be_negative))
        fail_option(name, option == "lr" ? "the learning rate" : option, found,
                    may_be_negative ? "a finite number" : "a finite number of 0 or more");
      if (option == "betas" && found >= 1) fail_option(name, option, found, "a number below 1");
    }
  }
  const bool nesterov = json.value("nesterov", false);
  if (nesterov && (json.at("momentum") == 0.0 || json.at("dampening") != 0.0))
    fail(ErrorKind::InvalidArgument,
         "the optimiser {}: nesterov needs a momentum above 0 and a dampening of 0", name);
}

int64_t slice_elements(const torch::Tensor& values) {
  // On a GPU every slice would be a kernel launch, and slices would not make better use of its caches.
  if (!values.device().is_cpu()) return std::max<int64_t>(1, values.numel());
  return Optimizer::kSliceElements * at::get_num_threads();
}

// state_of() returns the state of a slice as its class; make_state() first puts a new one there.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const torch::Tensor& values) {
  return static_cast<State&>(*optimizer.state().at(compat::optimizer_state_key(optimizer, values)));
}

template <class State>
State& make_state(torch::optim::Optimizer& optimizer, const torch::Tensor& values) {
  optimizer.state()[compat::optimizer_state_key(optimizer, values)] = std::make_unique<State>();
  return state_of<State>(optimizer, values);
}

// SGD without momentum keeps nothing, and then LibTorch has no state object for it.
template <class Kind, class Options>
bool has_slots(Kind kind, const Options& options) {
  typename Kind::State state;
  return !kind.slots(state, options).empty();
}

// Returns the part of a slot that covers `elements` elements of the block, from `offset` on.
torch::Tensor find_slot(std::span<const Optimizer::Slot> slots, std::string_view name, size_t block,
                        int64_t offset, int64_t elements) {
  bool is_there = false;
  for (const Optimizer::Slot& slot : slots) {
    if (slot.name != name || slot.block != block) continue;
    is_there = true;
    if (slot.offset <= offset && offset + elements <= slot.offset + slot.vector.numel())
      return slot.vector.narrow(0, offset - slot.offset, elements);
  }
  if (is_there) {
    fail(ErrorKind::InvalidArgument,
         "the optimiser's slot {} does not have the required {} elements from element {} on", name, elements,
         offset);
  }
  fail(ErrorKind::InvalidArgument,
       "the optimiser's slot {} is missing; was the checkpoint made by another optimiser?", name);
}

}  // namespace

Optimizer::Optimizer(std::vector<Stretch> stretches, const OptimizerOptions& options)
    : stretches_(std::move(stretches)), options_(options) {
  require_in_range(options_);
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const torch::Tensor& values = stretches_[i].values;
    const int64_t step = slice_elements(values);
    for (int64_t offset = 0; offset < values.numel(); offset += step) {
      const int64_t length = std::min(step, values.numel() - offset);
      slices_.push_back({i, offset, values.narrow(0, offset, length).detach().requires_grad_(true)});
    }
  }
  use_gradients([this](size_t i) { return stretches_[i].grads; });
  optimizer_ = make();
}

std::unique_ptr<torch::optim::Optimizer> Optimizer::make() const {
  std::vector<torch::Tensor> parameters;
  for (const Slice& slice : slices_) parameters.push_back(slice.values);
  return with_kind(options_, [&](const auto& o, auto kind) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<typename decltype(kind)::Optimizer>(parameters, o);
  });
}

Optimizer::~Optimizer() = default;

void Optimizer::step() {
  optimizer_->step();
  ++steps_;
}

void Optimizer::step(std::span<const torch::Tensor> gradients) {
  use_gradients([&](size_t i) { return gradients[i]; });
  step();
  use_gradients([this](size_t i) { return stretches_[i].grads; });
}

void Optimizer::use_gradients(const std::function<torch::Tensor(size_t stretch)>& of) {
  for (Slice& slice : slices_) {
    const torch::Tensor stretch = of(slice.stretch);
    const int64_t elements = slice.values.numel();
    slice.values.mutable_grad() =
        elements == stretch.numel() ? stretch : stretch.narrow(0, slice.offset, elements);
  }
}

std::string Optimizer::name() const {
  return with_kind(options_, [](const auto&, auto kind) -> std::string { return decltype(kind)::kName; });
}

double Optimizer::learning_rate() const { return optimizer_->param_groups().front().options().get_lr(); }

void Optimizer::set_learning_rate(double rate) {
  if (!std::isfinite(rate) || rate < 0)
    fail_option(name(), "the learning rate", rate, "a finite number of 0 or more");
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

std::vector<Optimizer::Slot> Optimizer::slots() const {
  std::vector<Slot> slots;
  if (steps_ == 0) return slots;
  const torch::NoGradGuard no_grad;
  const auto slot_at = [&](const char* name, const Stretch& stretch) -> Slot& {
    for (Slot& slot : slots) {
      if (slot.name == name && slot.block == stretch.block && slot.offset == stretch.offset) return slot;
    }
    return slots.emplace_back(Slot{name, stretch.block, stretch.offset, torch::empty_like(stretch.values)});
  };
  with_kind(options_, [&](const auto& options, auto kind) {
    if (!has_slots(kind, options)) return;
    for (const Slice& slice : slices_) {
      auto& state = state_of<typename decltype(kind)::State>(*optimizer_, slice.values);
      for (const SlotView& view : kind.slots(state, options)) {
        slot_at(view.name, stretches_[slice.stretch])
            .vector.narrow(0, slice.offset, slice.values.numel())
            .copy_(*view.tensor);
      }
    }
  });
  return slots;
}

void Optimizer::restore(const State& restored) {
  steps_ = restored.steps;
  const torch::NoGradGuard no_grad;
  if (steps_ == 0) {
    const double rate = learning_rate();
    optimizer_ = make();
    set_learning_rate(rate);
    return;
  }
  with_kind(options_, [&](const auto& options, auto kind) {
    if (!has_slots(kind, options)) return;
    for (const Slice& slice : slices_) {
      auto& state = make_state<typename decltype(kind)::State>(*optimizer_, slice.values);
      kind.set_step(state, steps_);
      for (const SlotView& view : kind.slots(state, options)) {
        const Stretch& stretch = stretches_[slice.stretch];
        *view.tensor = find_slot(restored.slots, view.name, stretch.block, stretch.offset + slice.offset,
                                 slice.values.numel())
                           .to(slice.values.options())
                           .clone();
        view.tensor->set_requires_grad(false);
      }
    }
  });
}

Json to_json(const OptimizerOptions& options) {
  return with_kind(options, [](const auto& o, auto kind) {
    Json json = {{"name", decltype(kind)::kName}};
    json.update(kind.json(o));
    return json;
  });
}

template <size_t I = 0>
static OptimizerOptions options_of_kind(const Json& json, const std::string& name) {
  if constexpr (I == std::variant_size_v<OptimizerOptions>) {
    fail(ErrorKind::InvalidArgument, "the optimiser '{}' is unknown", name);
  } else {
    using ThisKind = Kind<std::variant_alternative_t<I, OptimizerOptions>>;
    if (name == ThisKind::kName) return ThisKind::options(json);
    return options_of_kind<I + 1>(json, name);
  }
}

OptimizerOptions optimizer_from_json(const Json& json) {
  try {
    return options_of_kind(json, json.at("name").get<std::string>());
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "the optimiser's options are invalid: {}", error.what());
  }
}

}  // namespace tutti
