#include "tutti/params/adam.h"

#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/same_functions.h"

namespace tutti::optimizer_kinds {
namespace {

template <class State, class Options>
std::unique_ptr<State> begun(const torch::Tensor& values, const Options& options) {
  auto state = std::make_unique<State>();
  state->exp_avg(torch::zeros_like(values));
  state->exp_avg_sq(torch::zeros_like(values));
  if (options.amsgrad()) state->max_exp_avg_sq(torch::zeros_like(values));
  return state;
}

// Kingma and Ba 2015; AdamW, by Loshchilov and Hutter 2019, takes the decay off the weights instead of adding
// it to the gradient.
template <class Options, class State>
void update(torch::Tensor values, torch::Tensor gradient, const Options& options, State& state) {
  state.step(state.step() + 1);
  const auto step = static_cast<double>(state.step());
  const auto [beta1, beta2] = options.betas();
  if (options.weight_decay() != 0) {
    if constexpr (std::is_same_v<Options, torch::optim::AdamWOptions>)
      values.mul_(1 - options.lr() * options.weight_decay());
    else
      gradient = gradient.add(values, options.weight_decay());
  }
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  torch::Tensor squares = state.exp_avg_sq();
  if (options.amsgrad()) squares = torch::max_out(state.max_exp_avg_sq(), state.max_exp_avg_sq(), squares);
  const torch::Tensor scale = (squares.sqrt() / std::sqrt(1 - same::pow(beta2, step))).add_(options.eps());
  values.addcdiv_(state.exp_avg(), scale, -options.lr() / (1 - same::pow(beta1, step)));
}

}  // namespace

template <class Base, class Options, class State>
torch::Tensor AdamSteps<Base, Options, State>::step(torch::optim::Optimizer::LossClosure closure) {
  const torch::NoGradGuard no_grad;
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  for (torch::optim::OptimizerParamGroup& group : this->param_groups_) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const torch::Tensor& values : group.params()) {
      if (!values.grad().defined()) continue;
      auto& kept = this->state_[compat::optimizer_state_key(*this, values)];
      if (!kept) kept = begun<State>(values, options);
      update(values, values.grad(), options, static_cast<State&>(*kept));
    }
  }
  return loss;
}

template class AdamSteps<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
template class AdamSteps<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

}  // namespace tutti::optimizer_kinds
