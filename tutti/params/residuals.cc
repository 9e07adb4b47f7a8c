#include "tutti/params/residuals.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/comm/gather_all.h"

namespace tutti {
namespace {

constexpr const char* kPrefix = "unsent.";
constexpr const char* kWhat = "the rounding residuals";

using Slots = std::vector<Optimizer::Slot>;

std::string name_of(int rank, int world, size_t subtree) {
  return fmt::format("{}{}of{}.{}", kPrefix, rank, world, subtree);
}

std::string name_of_sums(int world) { return fmt::format("{}{}", kPrefix, world); }

// Returns a saved vector of gradients; zeros with the shape of `like` if there is none.
torch::Tensor find(const Slots& slots, const std::string& name, size_t block, const torch::Tensor& like) {
  for (const Optimizer::Slot& slot : slots) {
    if (slot.name == name && slot.block == block) return slot.vector;
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

void gather_residuals(comm::Communicator& comm, const Parameters& parameters, const GradientMean& mean,
                      Optimizer::State& state) {
  const torch::NoGradGuard no_grad;
  const std::optional<Residuals> own = mean.residuals();
  if (!own) return;
  const comm::Options options{.what = kWhat};
  // The vectors of the buckets begin with those of the gradients, one for each block.
  for (size_t block = 0; block < parameters.blocks().size(); ++block) {
    const torch::Tensor& sums = own->sums[block];
    comm.all_reduce(sums, comm::ReduceOp::Sum, options)
        .wait();  // each worker has its part, and zeros elsewhere
    if (comm.rank() == 0) state.slots.push_back({name_of_sums(comm.world()), block, 0, sums});
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      const torch::Tensor& mine = own->subtrees[subtree][block];
      if (comm.rank() > 0) {
        comm.send(mine, 0, options).wait();
        continue;
      }
      state.slots.push_back({name_of(0, comm.world(), subtree), block, 0, mine});
      for (int rank = 1; rank < comm.world(); ++rank) {
        const torch::Tensor theirs = torch::empty_like(mine);
        comm.recv(theirs, rank, options).wait();
        state.slots.push_back({name_of(rank, comm.world(), subtree), block, 0, theirs});
      }
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
  if (comm::gather_all(comm, int64_t{ours}, kWhat)[0] == 0) return;
  const comm::Options options{.what = kWhat};
  for (size_t block = 0; block < parameters.blocks().size(); ++block) {
    const torch::Tensor& like = parameters.blocks()[block].grads;
    if (comm.rank() == 0) own->sums[block].copy_(find(saved, sums, block, like));
    comm.broadcast(own->sums[block], 0, options).wait();
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      torch::Tensor& mine = own->subtrees[subtree][block];
      if (comm.rank() > 0) {
        comm.recv(mine, 0, options).wait();
        continue;
      }
      for (int rank = 1; rank < comm.world(); ++rank)
        comm.send(find(saved, name_of(rank, comm.world(), subtree), block, like), rank, options).wait();
      mine.copy_(find(saved, name_of(0, comm.world(), subtree), block, like));
    }
  }
  mean.set_residuals(*own);
}

}  // namespace tutti
