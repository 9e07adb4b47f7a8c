#include "tutti/step/optimizer_state.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/step/gradient_mean.h"

namespace tutti {
namespace {

using Slots = std::vector<Optimizer::Slot>;

constexpr const char* kState = "the optimiser's state";
constexpr const char* kPrefix = "unsent.";
constexpr const char* kResiduals = "the rounding residuals";

std::string name_of(int rank, int world, size_t subtree) {
  return fmt::format("{}{}of{}.{}", kPrefix, rank, world, subtree);
}

std::string name_of_sums(int world) { return fmt::format("{}{}", kPrefix, world); }

// Returns a saved residual, on the device of `like`; zeros of the same shape if there is none.
torch::Tensor residual_in(const Slots& slots, const std::string& name, size_t block,
                          const torch::Tensor& like) {
  for (const Optimizer::Slot& slot : slots) {
    if (slot.name == name && slot.block == block) return slot.vector.to(like.device());
  }
  return torch::zeros_like(like);
}

Slots take_out(Optimizer::State& state) {
  const auto is_other = [](const Optimizer::Slot& slot) { return !slot.name.starts_with(kPrefix); };
  const auto first = std::stable_partition(state.slots.begin(), state.slots.end(), is_other);
  Slots taken(std::make_move_iterator(first), std::make_move_iterator(state.slots.end()));
  state.slots.erase(first, state.slots.end());
  return taken;
}

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

torch::Tensor whole_slot(Slots& slots, const Parameters& parameters, const std::string& name, size_t block) {
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

std::vector<Optimizer::Slot> part_of(const Optimizer::State& whole, size_t block, int64_t begin,
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

void gather_residuals(comm::Communicator& comm, const Parameters& parameters, const GradientMean& mean,
                      Optimizer::State& state) {
  const torch::NoGradGuard no_grad;
  const std::optional<Residuals> own = mean.residuals();
  if (!own) return;
  const comm::Options options{.what = kResiduals};
  // The vectors of the buckets begin with those of the gradients, one for each block.
  for (size_t block = 0; block < parameters.blocks().size(); ++block) {
    const torch::Tensor& sums = own->sums[block];
    // Each worker has its part, and zeros elsewhere.
    comm.all_reduce(sums, comm::ReduceOp::Sum, options).wait();
    if (comm.rank() == 0) state.slots.push_back({name_of_sums(comm.world()), block, 0, sums});
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      const torch::Tensor& mine = own->subtrees[subtree][block];
      const int ranks = comm.rank() == 0 ? comm.world() : 0;  // only rank 0 receives
      const torch::Tensor all = torch::empty({ranks, mine.numel()}, mine.options());
      comm.gather(all, mine, 0, options).wait();
      for (int rank = 0; rank < ranks; ++rank)
        state.slots.push_back({name_of(rank, comm.world(), subtree), block, 0, all[rank]});
    }
  }
}

void restore_residuals(const Context& context, comm::Communicator& comm, const Parameters& parameters,
                       GradientMean& mean, Optimizer::State& state) {
  const torch::NoGradGuard no_grad;
  const Slots saved = take_out(state);
  const std::string sums = name_of_sums(comm.world());
  const bool ours =
      std::any_of(saved.begin(), saved.end(), [&](const Optimizer::Slot& slot) { return slot.name == sums; });
  std::optional<Residuals> own = mean.residuals();
  if (comm.rank() == 0 && !saved.empty() && (!ours || !own))
    context.log().warning(
        "the rounding residuals in the checkpoint (--wire-precision) are dropped, since they belong to "
        "another number of workers or are not used: the run continues, but not with the bits of an "
        "uninterrupted run");
  if (!own) return;
  if (comm::gather_all(comm, int64_t{ours}, kResiduals)[0] == 0) return;
  const comm::Options options{.what = kResiduals};
  for (size_t block = 0; block < parameters.blocks().size(); ++block) {
    const torch::Tensor& like = parameters.blocks()[block].grads;
    if (comm.rank() == 0) own->sums[block].copy_(residual_in(saved, sums, block, like));
    comm.broadcast(own->sums[block], 0, options).wait();
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      std::vector<torch::Tensor> all;
      for (int rank = 0; rank < comm.world() && comm.rank() == 0; ++rank)
        all.push_back(residual_in(saved, name_of(rank, comm.world(), subtree), block, like));
      comm.scatter(own->subtrees[subtree][block], all.empty() ? like : torch::cat(all), 0, options).wait();
    }
  }
  mean.set_residuals(*own);
}

}  // namespace tutti
