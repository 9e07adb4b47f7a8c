#include "tutti/train/snapshot.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;

constexpr size_t kDifferencesShown = 12;

Tensors by_name(const std::vector<store::NamedTensor>& tensors) {
  Tensors map;
  for (const auto& [name, tensor] : tensors) map.emplace(name, tensor);
  return map;
}

std::vector<const Parameters::View*> all_views(const Parameters& parameters) {
  std::vector<const Parameters::View*> views;
  for (const auto& view : parameters.trained()) views.push_back(&view);
  for (const auto& view : parameters.frozen()) views.push_back(&view);
  for (const auto& view : parameters.buffers()) views.push_back(&view);
  return views;
}

// One line a difference: "- conv1.weight float32[32,1,5,5]" only in the checkpoint, "+" only in the model.
std::vector<std::string> differences(const Parameters& parameters, Tensors saved) {
  std::vector<std::string> lines;
  for (const auto* view : all_views(parameters)) {
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

void require_same_model(const Parameters& parameters, const Tensors& saved, const std::string& where) {
  std::vector<std::string> lines = differences(parameters, saved);
  if (lines.empty()) return;
  const size_t more = lines.size() > kDifferencesShown ? lines.size() - kDifferencesShown : 0;
  lines.resize(lines.size() - more);
  if (more > 0) lines.push_back(fmt::format("and {} more", more));
  fail(ErrorKind::InvalidArgument,
       "{} is of another model (- only in the checkpoint, + only in the model, ! differs):\n  {}\nTo start "
       "anew, give "
       "another --logdir or --resume never",
       where, fmt::join(lines, "\n  "));
}

void require_same_optimizer(const Optimizer& optimizer, const store::Checkpoint& checkpoint,
                            const std::string& where) {
  const auto saved =
      checkpoint.state.value("optimizer", nlohmann::json::object()).value("name", std::string());
  if (saved == optimizer.name()) return;
  fail(ErrorKind::InvalidArgument,
       "{} was made with the optimiser {}, the program now uses {}; to start anew, give another --logdir or "
       "--resume never",
       where, saved, optimizer.name());
}

// The optimiser's vectors put together again from their pieces by name.
std::vector<Optimizer::Slot> slots_of(const Parameters& parameters, const Tensors& saved) {
  std::vector<Optimizer::Slot> slots;
  const auto slot_at = [&](const std::string& name, size_t block) -> Optimizer::Slot& {
    for (auto& slot : slots) {
      if (slot.name == name && slot.block == block) return slot;
    }
    return slots.emplace_back(
        Optimizer::Slot{name, block, 0, torch::zeros_like(parameters.blocks()[block].values)});
  };
  for (const auto& [full_name, tensor] : saved) {
    const auto slash = full_name.find('/');
    const std::string parameter = full_name.substr(slash + 1);
    for (const auto& view : parameters.trained()) {
      if (slash == std::string::npos || view.name != parameter) continue;
      parameters.view_of(view, slot_at(full_name.substr(0, slash), view.block).vector).copy_(tensor);
    }
  }
  return slots;
}

}  // namespace

store::Checkpoint snapshot(const Parameters& parameters, const OptimizerOptions& optimizer,
                           const Optimizer::State& state) {
  store::Checkpoint checkpoint;
  for (const auto* view : all_views(parameters))
    checkpoint.weights.push_back({view->name, view->tensor.detach()});
  for (const auto& slot : state.slots) {
    for (const auto& view : parameters.trained()) {
      if (view.block != slot.block) continue;
      checkpoint.optimizer.push_back({slot.name + "/" + view.name, parameters.view_of(view, slot.vector)});
    }
  }
  checkpoint.state["optimizer"] = nlohmann::json(to_json(optimizer));
  checkpoint.state["optimizer"]["steps"] = state.steps;
  checkpoint.state["weights_sha256"] = parameters.sha256();
  return checkpoint;
}

Optimizer::State restore(Parameters& parameters, const Optimizer& optimizer,
                         const store::Checkpoint& checkpoint, const std::string& where) {
  const Tensors weights = by_name(checkpoint.weights);
  require_same_model(parameters, weights, where);
  require_same_optimizer(optimizer, checkpoint, where);
  const torch::NoGradGuard no_grad;
  Optimizer::State state{.steps = checkpoint.state.at("optimizer").value("steps", int64_t{0}),
                         .slots = slots_of(parameters, by_name(checkpoint.optimizer))};
  for (const auto* view : all_views(parameters)) {
    torch::Tensor tensor = view->tensor.detach();
    tensor.copy_(weights.at(view->name));
  }
  return state;
}

}  // namespace tutti
