#include "tutti/params/adam.h"

#include <cmath>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/adam.h"
#include "tutti/kernels/parallel.h"
#include "tutti/kernels/same_functions.h"
#include "tutti/kernels/same_kernels.h"

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

// Makes a step in one pass with the kernels of tutti/kernels. Returns false if they are not in use, or
// cannot.
template <class T>
bool update_in_one_pass(const torch::Tensor& values, const torch::Tensor& gradient,
                        const torch::Tensor& average, const torch::Tensor& squares,
                        const torch::Tensor& old_average, const torch::Tensor& old_squares,
                        kernels::AdamStep<T> step) {
  constexpr int64_t kOperations = 20;  // of an element
  const auto fits = [](const torch::Tensor& each) {
    return each.scalar_type() == c10::CppTypeToScalarType<T>::value && each.device().is_cpu() &&
           each.layout() == torch::kStrided && each.is_contiguous();
  };
  if (!fits(values) || !fits(gradient) || !fits(average) || !fits(squares)) return false;
  kernels::in_parallel(values.numel(), kOperations, [&](int64_t first, int64_t last) {
    kernels::AdamStep<T> part = step;
    part.values = values.data_ptr<T>() + first;
    part.gradient = gradient.data_ptr<T>() + first;
    part.average = average.data_ptr<T>() + first;
    part.squares = squares.data_ptr<T>() + first;
    part.count = last - first;
    if (old_average.defined()) {
      part.old_average = old_average.data_ptr<T>() + first;
      part.old_squares = old_squares.data_ptr<T>() + first;
    }
    kernels::make_adam_step(part);
  });
  return true;
}

// Kingma and Ba 2015; AdamW, by Loshchilov and Hutter 2019, takes the decay off the weights instead of adding
// it to the gradient.
template <class Options, class State>
void update(torch::Tensor values, torch::Tensor gradient, const Options& options, State& state) {
  state.step(state.step() + 1);
  const torch::Tensor old_average = std::exchange(state.old_exp_avg, {});
  const torch::Tensor old_squares = std::exchange(state.old_exp_avg_sq, {});
  const auto step = static_cast<double>(state.step());
  const double beta1 = std::get<0>(options.betas());
  const double beta2 = std::get<1>(options.betas());
  constexpr bool kIsAdamW = std::is_same_v<Options, torch::optim::AdamWOptions>;
  const double shrink = kIsAdamW ? 1 - options.lr() * options.weight_decay() : 1;
  const double decay = kIsAdamW ? 0 : options.weight_decay();
  const double correction = std::sqrt(1 - same::pow(beta2, step));
  const double factor = -options.lr() / (1 - same::pow(beta1, step));
  if (kernels::SameKernels::are_in_use() && !options.amsgrad()) {
    const auto in_one_pass = [&](auto zero) {
      return update_in_one_pass<decltype(zero)>(values, gradient, state.exp_avg(), state.exp_avg_sq(),
                                                old_average, old_squares,
                                                {.shrink = shrink,
                                                 .decay = decay,
                                                 .beta1 = beta1,
                                                 .beta2 = beta2,
                                                 .correction = correction,
                                                 .eps = options.eps(),
                                                 .factor = factor});
    };
    if (in_one_pass(0.0F) || in_one_pass(0.0)) return;
  }
  if (old_average.defined()) {
    state.exp_avg().copy_(old_average);
    state.exp_avg_sq().copy_(old_squares);
  }
  if (shrink != 1) values.mul_(shrink);
  if (decay != 0) gradient = gradient.add(values, decay);
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  torch::Tensor squares = state.exp_avg_sq();
  if (options.amsgrad()) squares = torch::max_out(state.max_exp_avg_sq(), state.max_exp_avg_sq(), squares);
  values.addcdiv_(state.exp_avg(), (squares.sqrt() / correction).add_(options.eps()), factor);
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

template class AdamSteps<torch::optim::Adam, torch::optim::AdamOptions,
                         AdamState<torch::optim::AdamParamState>>;
template class AdamSteps<torch::optim::AdamW, torch::optim::AdamWOptions,
                         AdamState<torch::optim::AdamWParamState>>;

}  // namespace tutti::optimizer_kinds
