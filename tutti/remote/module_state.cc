#include <map>
#include <string>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/remote/module_service.h"

namespace tutti::ps {
namespace {

using TensorsByName = std::map<std::string, torch::Tensor>;

std::string steps_name(const Optimizer& optimizer) { return optimizer.name() + "/steps"; }

// Removes the tensor from the state and returns it.
torch::Tensor take_tensor(TensorsByName& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end())
    fail(ErrorKind::InvalidArgument, "the state has no {}: it belongs to another module or optimiser", name);
  const torch::Tensor tensor = found->second;
  state.erase(found);
  return tensor;
}

void require_alike(const std::string& name, const torch::Tensor& given, const torch::Tensor& own) {
  if (given.sizes() != own.sizes() || given.scalar_type() != own.scalar_type())
    fail(ErrorKind::InvalidArgument, "{} is {} in the state, but {} in the module", name, describe(given),
         describe(own));
}

// Converts the rest of the state, which has to consist of the optimiser's slots.
std::vector<Optimizer::Slot> slots_of(const Parameters& parameters, const TensorsByName& state) {
  std::vector<Optimizer::Slot> slots;
  for (const auto& [name, tensor] : state) {
    const size_t slash = name.find('/');
    const Parameters::View* of = nullptr;
    for (const Parameters::View& view : parameters.trained()) {
      if (slash != std::string::npos && name.compare(slash + 1, std::string::npos, view.name) == 0)
        of = &view;
    }
    if (of == nullptr)
      fail(ErrorKind::InvalidArgument, "the state has {}, which the module does not have", name);
    require_alike(name, tensor, of->tensor);
    parameters.view_of(*of, whole_slot(slots, parameters, name.substr(0, slash), of->block)).copy_(tensor);
  }
  for (const Optimizer::Slot& slot : slots) {
    for (const Parameters::View& view : parameters.trained()) {
      const std::string name = slot.name + "/" + view.name;
      if (view.block == slot.block && !state.contains(name))
        fail(ErrorKind::InvalidArgument,
             "the state has no {}, although it has the same slot for other parameters", name);
    }
  }
  return slots;
}

// Restores the whole state, or none of it if it throws.
void restore(Optimizer& optimizer, const Optimizer::State& state) {
  const Optimizer::State before = optimizer.state();
  try {
    optimizer.restore(state);
  } catch (...) {
    optimizer.restore(before);
    throw;
  }
}

}  // namespace

store::NamedTensors state_of(const Parameters& parameters, const Optimizer& optimizer) {
  store::NamedTensors named;
  for (const Parameters::View* view : parameters.all()) named.push_back({view->name, view->tensor.detach()});
  const Optimizer::State state = optimizer.state();
  for (const Optimizer::Slot& slot : state.slots) {
    for (const Parameters::View& view : parameters.trained()) {
      if (view.block == slot.block)
        named.push_back({slot.name + "/" + view.name, parameters.view_of(view, slot.vector)});
    }
  }
  named.push_back({steps_name(optimizer), torch::tensor(state.steps, torch::kInt64)});
  return named;
}

void load_state(Parameters& parameters, Optimizer& optimizer, const store::NamedTensors& state) {
  const torch::NoGradGuard no_grad;
  TensorsByName left;
  for (const auto& [name, tensor] : state) {
    if (!tensor.defined() || !left.emplace(name, tensor).second)
      fail(ErrorKind::InvalidArgument, "the state is invalid: {} is {}", name,
           tensor.defined() ? "given twice" : "undefined");
  }
  const torch::Tensor steps = take_tensor(left, steps_name(optimizer));
  require_alike(steps_name(optimizer), steps, torch::tensor(int64_t{0}, torch::kInt64));
  std::vector<torch::Tensor> values;
  for (const Parameters::View* view : parameters.all()) {
    values.push_back(take_tensor(left, view->name));
    require_alike(view->name, values.back(), view->tensor);
  }
  restore(optimizer, {.steps = steps.item<int64_t>(), .slots = slots_of(parameters, left)});
  size_t i = 0;
  for (const Parameters::View* view : parameters.all()) {
    torch::Tensor tensor = view->tensor.detach();
    tensor.copy_(values[i++]);
  }
}

}  // namespace tutti::ps
