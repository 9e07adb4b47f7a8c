#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include "tutti/params/optimizer_options.h"

namespace tutti {

// The state that an ElementwiseOptimizer keeps for one slice of the parameters.
struct ElementwiseState final : torch::optim::OptimizerCloneableParamState<ElementwiseState> {
  int64_t step = 0;
  std::vector<torch::Tensor> slots;
};

// Its options for one group. They are not an OptimizerCloneableOptions, of which newer versions of LibTorch
// look into the fields.
struct ElementwiseGroup final : torch::optim::OptimizerOptions {
  ElementwiseGroup(double with_rate, double with_weight_decay)
      : rate(with_rate), weight_decay(with_weight_decay) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<ElementwiseGroup>(*this);
  }
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }

  double rate;
  double weight_decay;
};

// Runs an ElementwiseOptimizer in the form of an optimiser of torch::optim.
class ElementwiseSteps final : public torch::optim::Optimizer {
 public:
  ElementwiseSteps(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const ElementwiseOptimizer& own);
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  const ElementwiseOptimizer own_;
};

// Makes two steps on numbers of its own, and throws InvalidArgument if a part of a vector gets other bits
// than in the whole vector, or if the gradients were changed.
void require_elementwise(const ElementwiseOptimizer& own);

}  // namespace tutti
