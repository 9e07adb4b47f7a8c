#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/utils.h>

#include "tutti/comm/gather_all.h"
#include "tutti/step/gradient_mean.h"

// The part of GradientMean that saves and restores the residuals of rounding.
namespace tutti {
namespace {

using Slots = std::vector<Optimizer::Slot>;

// "unsent.1of4.0" is the slot of the first subtree that worker 1 of 4 sends; "unsent.4" is the slot of the
// sums that the 4 workers hand out.
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

void GradientMean::gather_residuals(Optimizer::State& state) const {
  const torch::NoGradGuard no_grad;
  const std::optional<Residuals> own = reducer_.sums().residuals();
  if (!own) return;
  const comm::Options options{.what = kResiduals};
  // The vectors of the buckets begin with the vectors of the gradients, one for each block.
  for (size_t block = 0; block < parameters_.blocks().size(); ++block) {
    const torch::Tensor& sums = own->sums[block];
    // Each worker has its part, and zeros elsewhere.
    comm_.all_reduce(sums, comm::ReduceOp::Sum, options).wait();
    if (comm_.rank() == 0) state.slots.push_back({name_of_sums(comm_.world()), block, 0, sums});
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      const torch::Tensor& mine = own->subtrees[subtree][block];
      const int ranks = comm_.rank() == 0 ? comm_.world() : 0;  // only rank 0 receives
      const torch::Tensor all = torch::empty({ranks, mine.numel()}, mine.options());
      comm_.gather(all, mine, 0, options).wait();
      for (int rank = 0; rank < ranks; ++rank)
        state.slots.push_back({name_of(rank, comm_.world(), subtree), block, 0, all[rank]});
    }
  }
}

void GradientMean::restore_residuals(const Context& context, Optimizer::State& state) {
  const torch::NoGradGuard no_grad;
  const Slots saved = take_out(state);
  const std::string sums = name_of_sums(comm_.world());
  const bool ours =
      std::any_of(saved.begin(), saved.end(), [&](const Optimizer::Slot& slot) { return slot.name == sums; });
  std::optional<Residuals> own = reducer_.sums().residuals();
  if (comm_.rank() == 0 && !saved.empty() && (!ours || !own))
    context.log().warning(
        "the rounding residuals in the checkpoint (--wire-precision) are dropped, since they belong to "
        "another number of workers or are not used: the run continues, but not with the bits of an "
        "uninterrupted run");
  if (!own) return;
  if (comm::gather_all(comm_, int64_t{ours}, kResiduals)[0] == 0) return;
  const comm::Options options{.what = kResiduals};
  for (size_t block = 0; block < parameters_.blocks().size(); ++block) {
    const torch::Tensor& like = parameters_.blocks()[block].grads;
    if (comm_.rank() == 0) own->sums[block].copy_(residual_in(saved, sums, block, like));
    comm_.broadcast(own->sums[block], 0, options).wait();
    for (size_t subtree = 0; subtree < own->subtrees.size(); ++subtree) {
      std::vector<torch::Tensor> all;
      for (int rank = 0; rank < comm_.world() && comm_.rank() == 0; ++rank)
        all.push_back(residual_in(saved, name_of(rank, comm_.world(), subtree), block, like));
      comm_.scatter(own->subtrees[subtree][block], all.empty() ? like : torch::cat(all), 0, options).wait();
    }
  }
  reducer_.sums().set_residuals(*own);
}

}  // namespace tutti
