#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

namespace tutti::optimizer_kinds {

// What torch::optim keeps for a parameter, and where the next step reads it if it writes it to other memory.
template <class State>
struct AdamState final : State {
  torch::Tensor old_exp_avg;
  torch::Tensor old_exp_avg_sq;
};

// torch::optim::Adam and AdamW, but steps have the same bits on every machine: they divide by 1 - beta^step,
// and LibTorch computes that power by the C library's pow() (kernels/same_functions.h).
template <class Base, class Options, class State>
class AdamSteps final : public Base {
 public:
  using Base::Base;
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;
};

using Adam =
    AdamSteps<torch::optim::Adam, torch::optim::AdamOptions, AdamState<torch::optim::AdamParamState>>;
using AdamW =
    AdamSteps<torch::optim::AdamW, torch::optim::AdamWOptions, AdamState<torch::optim::AdamWParamState>>;

}  // namespace tutti::optimizer_kinds
