#include "tutti/params/optimizer_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/params/optimizer_kinds.h"

namespace tutti {
namespace {

using optimizer_kinds::with_kind;

[[noreturn]] void fail_option(std::string_view optimizer, std::string_view option, double value,
                              std::string_view range) {
  fail(ErrorKind::InvalidArgument, "the optimiser {}: {} is {}, expected {}", optimizer, option, value,
       range);
}

constexpr const char* kNotNegative = "a finite number of 0 or more";

bool is_negative(double number) { return !std::isfinite(number) || number < 0; }

// Checks the ranges of PyTorch's documentation. The JSON contains all numeric options.
template <class Options>
void require_valid(const Options& options) {
  const Json json = optimizer_kinds::Kind<Options>::json(options);
  const std::string name = optimizer_kinds::name_of(options);
  for (const auto& [option, value] : json.items()) {
    for (const Json& number : value.is_array() ? value : Json::array({value})) {
      if (!number.is_number()) continue;
      const auto found = number.get<double>();
      const bool may_be_negative = option == "dampening" || option == "lr_power";
      if (!std::isfinite(found) || (found < 0 && !may_be_negative))
        fail_option(name, option == "lr" ? "the learning rate" : option, found,
                    may_be_negative ? "a finite number" : kNotNegative);
      if (option == "lr_power" && found > 0) fail_option(name, option, found, "a number of at most 0");
      if (option == "betas" && found >= 1) fail_option(name, option, found, "a number below 1");
    }
  }
  const bool nesterov = json.value("nesterov", false);
  if (nesterov && (json.at("momentum") == 0.0 || json.at("dampening") != 0.0))
    fail(ErrorKind::InvalidArgument,
         "the optimiser {}: nesterov needs a momentum above 0 and a dampening of 0", name);
}

// Names become parts of the names of tensors in checkpoints, and keys of the manifest.
void require_usable_name(const std::string& name, const char* what) {
  if (name.empty() || name.find('/') != std::string::npos)
    fail(ErrorKind::InvalidArgument, "'{}' cannot be the name of {}, since it is empty or has a '/'", name,
         what);
}

void require_own_name(const std::string& name) {
  constexpr std::array<std::string_view, 6> kKnown = {"sgd", "adam", "adamw", "adagrad", "rmsprop", "ftrl"};
  require_usable_name(name, "an optimiser");
  if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end())
    fail(ErrorKind::InvalidArgument,
         "'{}' is an optimiser of torch::optim or of Tutti: give an optimiser of your own another name",
         name);
}

void require_valid(const ElementwiseOptimizer& own) {
  constexpr std::array<std::string_view, 6> kTaken = {"name",  "lr",     "weight_decay",
                                                      "slots", "groups", "steps"};
  require_own_name(own.name);
  if (is_negative(own.rate)) fail_option(own.name, "the learning rate", own.rate, kNotNegative);
  if (is_negative(own.weight_decay)) fail_option(own.name, "weight_decay", own.weight_decay, kNotNegative);
  for (const auto& [option, number] : own.numbers) {
    if (std::find(kTaken.begin(), kTaken.end(), option) != kTaken.end())
      fail(ErrorKind::InvalidArgument, "the optimiser {}: '{}' cannot be the name of one of its numbers",
           own.name, option);
    if (!std::isfinite(number)) fail_option(own.name, option, number, "a finite number");
  }
  for (const std::string& slot : own.slots) {
    require_usable_name(slot, "a slot of an optimiser");
    if (std::count(own.slots.begin(), own.slots.end(), slot) > 1)
      fail(ErrorKind::InvalidArgument, "the optimiser {} has two slots of the name '{}'", own.name, slot);
  }
  if (!own.update) fail(ErrorKind::InvalidArgument, "the optimiser {} has no function `update`", own.name);
  optimizer_kinds::require_elementwise(own);
}

void require_valid(const ReplicatedOptimizer& own) {
  require_own_name(own.name);
  if (!own.make) fail(ErrorKind::InvalidArgument, "the optimiser {} has no function `make`", own.name);
}

void require_in_range(const ParameterGroup& group, const OptimizerOptions& options) {
  const auto require = [&](const char* option, double value) {
    if (is_negative(value))
      fail(ErrorKind::InvalidArgument, "the optimiser {}: the {} of the group '{}' is {}, expected {}",
           name_of(options), option, group.names, value, kNotNegative);
  };
  require("rate", group.rate);
  require("weight decay", group.weight_decay.value_or(0));
  if (options.is_replicated() && (group.rate != 1 || group.weight_decay))
    fail(ErrorKind::InvalidArgument,
         "the optimiser {}: the group '{}' changes the rate or the weight decay, but groups can only freeze "
         "parameters of a ReplicatedOptimizer: build other groups in its function `make`",
         name_of(options), group.names);
}

template <size_t I = 0>
OptimizerOptions options_of_kind(const Json& json, const std::string& name) {
  if constexpr (I == std::variant_size_v<OptimizerOptions::Kind>) {
    fail(
        ErrorKind::InvalidArgument,
        "the optimiser '{}' is none of torch::optim or Tutti, and this task does not know it: give it to the "
        "program that runs here (Program::optimizers, or the arguments of serve() and Server). `tutti serve` "
        "knows no optimisers of programs",
        name);
  } else {
    using ThisKind = optimizer_kinds::Kind<std::variant_alternative_t<I, OptimizerOptions::Kind>>;
    if constexpr (requires { ThisKind::kName; }) {
      if (name == ThisKind::kName) return ThisKind::options(json);
    }
    return options_of_kind<I + 1>(json, name);
  }
}

OptimizerOptions options_of_own(const Json& json, ElementwiseOptimizer own) {
  own.rate = json.at("lr").get<double>();
  own.weight_decay = json.at("weight_decay").get<double>();
  const Json here = optimizer_kinds::Kind<ElementwiseOptimizer>::json(own);
  for (const auto& [option, value] : here.items()) {
    const Json there = json.value(option, Json());
    if (there == value) continue;
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} has {} {} here, but {} in the task that trains: start all tasks with the same "
         "program and flags",
         own.name, option, value.dump(), there.dump());
  }
  return own;
}

}  // namespace

std::string name_of(const OptimizerOptions& options) {
  return with_kind(options, [](const auto& o, auto) { return optimizer_kinds::name_of(o); });
}

void require_in_range(const OptimizerOptions& options) {
  with_kind(options, [](const auto& o, auto) { require_valid(o); });
  for (const ParameterGroup& group : options.groups) require_in_range(group, options);
}

void require_elementwise(const OptimizerOptions& options, std::string_view where) {
  if (!options.is_replicated()) return;
  fail(ErrorKind::InvalidArgument,
       "{} cannot be used with the optimiser {}, a ReplicatedOptimizer, which updates whole parameters: use "
       "--strategy allreduce or in-graph with --optimizer-state replicated, or write it as an "
       "ElementwiseOptimizer",
       where, name_of(options));
}

void require_learning_rate(const std::string& optimizer, double rate) {
  if (is_negative(rate)) fail_option(optimizer, "the learning rate", rate, kNotNegative);
}

// The list of groups is there also if it is empty, so that a resumed run finds that groups were added.
Json to_json(const OptimizerOptions& options) {
  return with_kind(options, [&](const auto& o, auto kind) {
    Json json = {{"name", optimizer_kinds::name_of(o)}};
    json.update(kind.json(o));
    json["groups"] = Json::array();
    for (const ParameterGroup& group : options.groups) json["groups"].push_back(to_json(group));
    return json;
  });
}

OptimizerOptions optimizer_from_json(const Json& json, std::span<const ElementwiseOptimizer> own) {
  try {
    const auto name = json.at("name").get<std::string>();
    const auto found = std::find_if(own.begin(), own.end(),
                                    [&](const ElementwiseOptimizer& one) { return one.name == name; });
    OptimizerOptions options =
        found == own.end() ? options_of_kind(json, name) : options_of_own(json, *found);
    for (const Json& group : json.value("groups", Json::array()))
      options.groups.push_back(group_from_json(group));
    return options;
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "the optimiser's options are invalid: {}", error.what());
  }
}

}  // namespace tutti
