#include "tutti/train/snapshot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/remote/remote_module.h"

namespace tutti {
namespace {

using store::TensorsByName;

constexpr size_t kDifferencesShown = 12;
constexpr const char* kArchive = "archive";  // the state of a ReplicatedOptimizer; slots have a '/'

// One line per difference: "- conv1.weight float32[32,1,5,5]" only in the checkpoint, "+" only in the model.
std::vector<std::string> differences(const Parameters& parameters, TensorsByName saved) {
  std::vector<std::string> lines;
  for (const auto* view : parameters.all()) {
    const auto found = saved.find(view->name);
    if (found == saved.end()) {
      lines.push_back(fmt::format("+ {} {}", view->name, describe(view->tensor)));
      continue;
    }
    if (describe(found->second) != describe(view->tensor)) {
      lines.push_back(fmt::format("! {} {} in the checkpoint, {} in the model", view->name,
                                  describe(found->second), describe(view->tensor)));
    }
    saved.erase(found);
  }
  for (const auto& [name, tensor] : saved) lines.push_back(fmt::format("- {} {}", name, describe(tensor)));
  return lines;
}

void require_same_model(const Parameters& parameters, const TensorsByName& saved, const std::string& where) {
  std::vector<std::string> lines = differences(parameters, saved);
  if (lines.empty()) return;
  const size_t more = lines.size() > kDifferencesShown ? lines.size() - kDifferencesShown : 0;
  lines.resize(lines.size() - more);
  if (more > 0) lines.push_back(fmt::format("and {} more", more));
  fail(ErrorKind::InvalidArgument,
       "{} belongs to another model (- only in the checkpoint, + only in the model, ! differs):\n  {}\nTo "
       "start from scratch, give another --logdir or --resume never",
       where, fmt::join(lines, "\n  "));
}

void require_same_optimizer(const Optimizer& optimizer, const store::Checkpoint& checkpoint,
                            const std::string& where) {
  const auto saved =
      checkpoint.state.value("optimizer", nlohmann::json::object()).value("name", std::string());
  if (saved == optimizer.name()) return;
  fail(ErrorKind::InvalidArgument,
       "{} was made with the optimiser {}, but the program now uses {}. To start from scratch, give another "
       "--logdir or --resume never",
       where, saved, optimizer.name());
}

// Assembles the optimiser's vectors from the tensors of the parameters.
std::vector<Optimizer::Slot> slots_of(const Parameters& parameters, const TensorsByName& saved) {
  std::vector<Optimizer::Slot> slots;
  for (const auto& [full_name, tensor] : saved) {
    const auto slash = full_name.find('/');
    const std::string parameter = full_name.substr(slash + 1);
    for (const auto& view : parameters.trained()) {
      if (slash == std::string::npos || view.name != parameter) continue;
      torch::Tensor slot =
          parameters.view_of(view, whole_slot(slots, parameters, full_name.substr(0, slash), view.block));
      if (tensor.sizes() != slot.sizes()) {
        fail(ErrorKind::DataLoss, "the optimiser's {} has the shape [{}] in the checkpoint, expected [{}]",
             full_name, fmt::join(tensor.sizes(), ", "), fmt::join(slot.sizes(), ", "));
      }
      slot.copy_(tensor);
    }
  }
  return slots;
}

// Returns the tensors of the optimiser's state, with parts of one parameter (tensors_of()) joined.
TensorsByName joined(const Parameters& parameters, const store::Checkpoint& checkpoint) {
  TensorsByName whole;
  TensorsByName flat;
  std::map<std::string, int64_t> elements;
  for (const auto& [full_name, tensor] : checkpoint.optimizer) {
    const size_t bracket = full_name.rfind('[');
    const std::string own_name = full_name.substr(full_name.find('/') + 1);
    const auto& views = parameters.trained();
    const bool is_whole =
        std::any_of(views.begin(), views.end(), [&](const auto& view) { return view.name == own_name; });
    const auto begin =
        !is_whole && full_name.ends_with(']') && bracket != std::string::npos
            ? parse_int(full_name.substr(bracket + 1, full_name.find(':', bracket) - bracket - 1))
            : std::nullopt;
    if (!begin) {
      whole.emplace(full_name, tensor);
      continue;
    }
    const std::string name = full_name.substr(0, bracket);
    const std::string parameter = name.substr(name.find('/') + 1);
    for (const auto& view : parameters.trained()) {
      if (view.name != parameter) continue;
      if (*begin < 0 || *begin + tensor.numel() > view.tensor.numel() || tensor.dim() != 1)
        fail(ErrorKind::DataLoss, "the optimiser's {} has {} elements, but {} has {}", full_name,
             tensor.numel(), parameter, view.tensor.numel());
      auto [found, is_new] = flat.try_emplace(name);
      if (is_new) found->second = torch::zeros({view.tensor.numel()}, tensor.options());
      found->second.narrow(0, *begin, tensor.numel()).copy_(tensor);
      elements[name] += tensor.numel();
    }
  }
  // The parts are in the order of memory of the layout with which they were saved.
  const bool channels_last =
      checkpoint.state.value("settings", nlohmann::json::object()).value("layout", "") == "channels-last";
  for (const auto& [name, vector] : flat) {
    if (elements[name] != vector.numel())
      fail(ErrorKind::DataLoss, "the optimiser's {} has {} of {} elements in the checkpoint", name,
           elements[name], vector.numel());
    for (const auto& view : parameters.trained()) {
      if (view.name != name.substr(name.find('/') + 1)) continue;
      const auto sizes = view.tensor.sizes();
      whole[name] = channels_last && view.tensor.dim() == 4
                        ? vector.view({sizes[0], sizes[2], sizes[3], sizes[1]}).permute({0, 3, 1, 2})
                        : vector.view(sizes);
    }
  }
  return whole;
}

void copy_weights(const Parameters& parameters, const TensorsByName& weights) {
  const torch::NoGradGuard no_grad;
  for (const auto* view : parameters.all()) {
    torch::Tensor tensor = view->tensor.detach();
    tensor.copy_(weights.at(view->name));
  }
}

}  // namespace

Json json_of_number(double number) {
  if (std::isfinite(number)) return number;
  if (std::isnan(number)) return "nan";
  return number > 0 ? "inf" : "-inf";
}

double number_of_json(const Json& value, std::string_view what) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  if (value == "nan" || value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  fail(ErrorKind::DataLoss, "{} should be a number, but it is {}", what, json_type_name(value));
}

store::NamedTensors tensors_of(const Parameters& parameters, const std::vector<Optimizer::Slot>& slots) {
  store::NamedTensors tensors;
  for (const auto& slot : slots) {
    for (const auto& view : parameters.trained()) {
      if (view.block != slot.block) continue;
      const int64_t begin = std::max(view.offset, slot.offset);
      const int64_t end = std::min(view.offset + view.tensor.numel(), slot.offset + slot.vector.numel());
      const bool is_empty = view.tensor.numel() == 0;
      // The slot of an empty parameter goes with the first elements of the block, which only one part has.
      if (is_empty ? slot.offset > 0 || slot.vector.numel() == 0 : end <= begin) continue;
      const std::string name = slot.name + "/" + view.name;
      const torch::Tensor flat =
          is_empty ? slot.vector.narrow(0, 0, 0) : slot.vector.narrow(0, begin - slot.offset, end - begin);
      if (flat.numel() == view.tensor.numel())
        tensors.push_back({name, flat.as_strided(view.tensor.sizes(), view.tensor.strides())});
      else
        tensors.push_back({fmt::format("{}[{}:{}]", name, begin - view.offset, end - view.offset), flat});
    }
  }
  return tensors;
}

store::Checkpoint snapshot(const Parameters& parameters, const OptimizerOptions& optimizer,
                           const Optimizer::State& state) {
  store::Checkpoint checkpoint;
  for (const auto* view : parameters.all()) checkpoint.weights.push_back({view->name, view->tensor.detach()});
  checkpoint.tied = parameters.aliases();
  checkpoint.optimizer = tensors_of(parameters, state.slots);
  if (state.archive.defined()) checkpoint.optimizer.push_back({kArchive, state.archive});
  checkpoint.state["optimizer"] = nlohmann::json(to_json(optimizer));
  checkpoint.state["optimizer"]["steps"] = state.steps;
  checkpoint.state["weights_sha256"] = parameters.sha256();
  return checkpoint;
}

Optimizer::State restore(Parameters& parameters, const Optimizer& optimizer,
                         const store::Checkpoint& checkpoint, const std::string& where) {
  const TensorsByName weights = by_name(checkpoint.weights);
  require_same_model(parameters, weights, where);
  require_same_optimizer(optimizer, checkpoint, where);
  const torch::NoGradGuard no_grad;
  const TensorsByName saved = joined(parameters, checkpoint);
  Optimizer::State state{.steps = checkpoint.state.at("optimizer").value("steps", int64_t{0}),
                         .slots = slots_of(parameters, saved)};
  if (const auto archive = saved.find(kArchive); archive != saved.end()) state.archive = archive->second;
  copy_weights(parameters, weights);
  return state;
}

void restore_weights(Parameters& parameters, const store::Checkpoint& checkpoint, const std::string& where) {
  const TensorsByName weights = by_name(checkpoint.weights);
  require_same_model(parameters, weights, where);
  copy_weights(parameters, weights);
}

StatePart remote_state(RemoteModule module) {
  return {[module]() mutable { return Snapshot{.tensors = module.state()}; },
          [module](const Snapshot& saved) mutable { module.load(saved.tensors); }};
}

void add_part(store::Checkpoint& whole, const std::string& name, store::Checkpoint part) {
  if (name.empty()) {
    whole = std::move(part);
    return;
  }
  for (auto& [tensor_name, tensor] : part.weights)
    whole.weights.push_back({name + "." + tensor_name, tensor});
  for (const auto& [alias, tensor_name] : part.tied)
    whole.tied[name + "." + alias] = name + "." + tensor_name;
  for (auto& [tensor_name, tensor] : part.optimizer) {
    const size_t parameter = tensor_name.find('/') + 1;
    whole.optimizer.push_back(
        {tensor_name.substr(0, parameter) + name + "." + tensor_name.substr(parameter), tensor});
  }
  whole.state["parts"][name] = std::move(part.state);
}

store::Checkpoint part_of(const store::Checkpoint& whole, const std::string& name, const std::string& where) {
  if (name.empty()) return whole;
  const nlohmann::json parts = whole.state.value("parts", nlohmann::json::object());
  if (!parts.contains(name)) {
    fail(ErrorKind::InvalidArgument,
         "{} does not contain the net '{}': it was saved by a run with other nets. To start from scratch, "
         "give another --logdir or --resume never",
         where, name);
  }
  store::Checkpoint part;
  part.step = whole.step;
  part.state = parts.at(name);
  const std::string prefix = name + ".";
  for (const auto& [tensor_name, tensor] : whole.weights) {
    if (tensor_name.starts_with(prefix)) part.weights.push_back({tensor_name.substr(prefix.size()), tensor});
  }
  for (const auto& [tensor_name, tensor] : whole.optimizer) {
    const size_t parameter = tensor_name.find('/') + 1;
    if (!tensor_name.substr(parameter).starts_with(prefix)) continue;
    part.optimizer.push_back(
        {tensor_name.substr(0, parameter) + tensor_name.substr(parameter + prefix.size()), tensor});
  }
  return part;
}

}  // namespace tutti
