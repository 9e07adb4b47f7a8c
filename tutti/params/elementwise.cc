#include "tutti/params/elementwise.h"

#include <cstring>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/torch_compat.h"

namespace tutti {
namespace {

// Compares bits, so that NaN equals itself.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() == b.numel() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

// A vector of numbers with slots, which update() changes as a whole or in two parts.
struct Trial {
  explicit Trial(size_t slot_count) {
    for (size_t i = 0; i < slot_count; ++i) slots.push_back(torch::zeros_like(values));
  }

  void update(const ElementwiseOptimizer& own, int64_t step, int64_t begin, int64_t end) const {
    std::vector<torch::Tensor> parts;
    for (const torch::Tensor& slot : slots) parts.push_back(slot.narrow(0, begin, end - begin));
    own.update({values.narrow(0, begin, end - begin), grads.narrow(0, begin, end - begin), parts, own.rate,
                own.weight_decay, step});
  }

  static constexpr int64_t kElements = 203;
  torch::Tensor values = torch::sin(torch::arange(kElements, torch::kFloat32));
  torch::Tensor grads = torch::cos(torch::arange(kElements, torch::kFloat32) * 3);
  std::vector<torch::Tensor> slots;
};

}  // namespace

ElementwiseSteps::ElementwiseSteps(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                   const ElementwiseOptimizer& own)
    : Optimizer(groups, std::make_unique<ElementwiseGroup>(own.rate, own.weight_decay)), own_(own) {}

torch::Tensor ElementwiseSteps::step(LossClosure /*closure*/) {
  const torch::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const ElementwiseGroup&>(group.options());
    for (const torch::Tensor& values : group.params()) {
      auto& kept = state_[compat::optimizer_state_key(*this, values)];
      if (!kept) {
        auto fresh = std::make_unique<ElementwiseState>();
        for (size_t i = 0; i < own_.slots.size(); ++i)
          fresh->slots.push_back(torch::zeros_like(values.detach()));
        kept = std::move(fresh);
      }
      auto& state = static_cast<ElementwiseState&>(*kept);
      ++state.step;
      own_.update(
          {values.detach(), values.grad(), state.slots, options.rate, options.weight_decay, state.step});
    }
  }
  return {};
}

void require_elementwise(const ElementwiseOptimizer& own) {
  constexpr int64_t kCut = 77;
  const torch::NoGradGuard no_grad;
  const Trial whole(own.slots.size());
  const Trial cut(own.slots.size());
  for (const int64_t step : {1, 2}) {
    whole.update(own, step, 0, Trial::kElements);
    cut.update(own, step, 0, kCut);
    cut.update(own, step, kCut, Trial::kElements);
  }
  if (!same_bits(whole.grads, Trial(0).grads))
    fail(ErrorKind::InvalidArgument,
         "the optimiser {} changes the gradients, which other workers may still need: compute with a copy",
         own.name);
  bool same = same_bits(whole.values, cut.values);
  for (size_t i = 0; i < own.slots.size(); ++i) same = same && same_bits(whole.slots[i], cut.slots[i]);
  if (!same)
    fail(
        ErrorKind::InvalidArgument,
        "the optimiser {} does not work element by element: a part of a vector gets other values than in the "
        "whole vector, so the result would depend on the number of workers. If it needs whole parameters, "
        "such as their norms, write it as a torch::optim::Optimizer and use a ReplicatedOptimizer",
        own.name);
}

}  // namespace tutti
