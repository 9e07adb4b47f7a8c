#include "tutti/params/optimizer_state.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"

namespace tutti {
namespace {

constexpr const char* kState = "the optimiser's state";

}  // namespace

// The tensors are the slots, whose places are among the values, and then the archive if there is one.
store::Snapshot snapshot_of(const Optimizer::State& state) {
  store::Snapshot snapshot{.values = {{"steps", state.steps}, {"places", Json::array()}}};
  for (const Optimizer::Slot& slot : state.slots) {
    snapshot.tensors.push_back({slot.name, slot.vector});
    snapshot.values["places"].push_back({slot.block, slot.offset});
  }
  if (state.archive.defined()) snapshot.tensors.push_back({"archive", state.archive});
  return snapshot;
}

Optimizer::State state_of(const store::Snapshot& snapshot) {
  try {
    Optimizer::State state{.steps = snapshot.values.at("steps").get<int64_t>(), .slots = {}};
    const Json& places = snapshot.values.at("places");
    for (const auto& [name, tensor] : snapshot.tensors) {
      if (!tensor.defined() || tensor.dim() != 1)
        fail(ErrorKind::InvalidArgument, "the optimiser's {} is not a vector", name);
      const size_t i = state.slots.size();
      if (i < places.size())
        state.slots.push_back(
            {name, places.at(i).at(0).get<size_t>(), places.at(i).at(1).get<int64_t>(), tensor});
      else
        state.archive = tensor;
    }
    return state;
  } catch (const Json::exception& error) {
    fail(ErrorKind::InvalidArgument, "the optimiser's state is invalid: {}", error.what());
  }
}

torch::Tensor whole_slot(std::vector<Optimizer::Slot>& slots, const Parameters& parameters,
                         const std::string& name, size_t block) {
  for (const Optimizer::Slot& slot : slots) {
    if (slot.name == name && slot.block == block) return slot.vector;
  }
  slots.push_back({name, block, 0, torch::zeros_like(parameters.blocks()[block].values)});
  return slots.back().vector;
}

void put(Optimizer::State& whole, const Parameters& parameters, const Optimizer::Slot& part) {
  whole_slot(whole.slots, parameters, part.name, part.block)
      .narrow(0, part.offset, part.vector.numel())
      .copy_(part.vector);
}

std::vector<Optimizer::Slot> slots_in(const Optimizer::State& whole, size_t block, int64_t begin,
                                      int64_t end) {
  std::vector<Optimizer::Slot> parts;
  for (const Optimizer::Slot& slot : whole.slots) {
    if (slot.block == block)
      parts.push_back({slot.name, block, begin, slot.vector.narrow(0, begin - slot.offset, end - begin)});
  }
  return parts;
}

void broadcast(comm::Communicator& comm, Parameters& parameters, int root) {
  if (comm.world() == 1) return;
  const torch::NoGradGuard no_grad;
  for (const auto& block : parameters.blocks())
    comm.broadcast(block.values, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.frozen())
    comm.broadcast(view.tensor, root, {.what = "the parameters"}).wait();
  for (const auto& view : parameters.buffers())
    comm.broadcast(view.tensor, root, {.what = "the buffers"}).wait();
}

Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root) {
  return state_of(broadcast(comm, snapshot_of(state), root, kState));
}

Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  Optimizer::State whole;
  gather(comm, snapshot_of(optimizer.state()), kState, [&](const store::Snapshot& part) {
    const Optimizer::State state = state_of(part);
    whole.steps = state.steps;
    for (const Optimizer::Slot& slot : state.slots) put(whole, parameters, slot);
  });
  return whole;
}

}  // namespace tutti
