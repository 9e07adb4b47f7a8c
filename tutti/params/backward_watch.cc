#include "tutti/params/backward_watch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti {

BackwardWatch::BackwardWatch(Parameters& parameters, const Call& before, const Call& done) : BackwardWatch() {
  using torch::autograd::variable_list;
  for (size_t i = 0; i < parameters.trained().size(); ++i) {
    const torch::Tensor& tensor = parameters.trained()[i].tensor;
    before_.emplace_back(tensor, tensor.register_hook([before, i](const torch::Tensor&) { before(i); }));
    const auto node = torch::autograd::impl::grad_accumulator(tensor);
    const uintptr_t key = node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [done, i](const variable_list& outputs, const variable_list&) {
          done(i);
          return outputs;
        }));
    take_away_.emplace_back([node, key] { node->del_post_hook(key); });
  }
}

BackwardWatch::~BackwardWatch() {
  for (const auto& [tensor, hook] : before_) tensor.remove_hook(hook);
  for (const auto& take_away : take_away_) take_away();
}

}  // namespace tutti
