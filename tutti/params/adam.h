#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

namespace tutti::optimizer_kinds {

// torch::optim::Adam and AdamW, but steps have the same bits on every machine: they divide by 1 - beta^step,
// and LibTorch computes that power by the C library's pow() (kernels/same_functions.h).
template <class Base, class Options, class State>
class AdamSteps final : public Base {
 public:
  using Base::Base;
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;
};

using Adam = AdamSteps<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using AdamW = AdamSteps<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

}  // namespace tutti::optimizer_kinds
