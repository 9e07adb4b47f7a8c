#include "tutti/params/backward_watch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti {

BackwardWatch::BackwardWatch(Parameters& parameters, const std::function<void(size_t parameter)>& done) {
  using torch::autograd::variable_list;
  for (size_t i = 0; i < parameters.trained().size(); ++i) {
    auto node = torch::autograd::impl::grad_accumulator(parameters.trained()[i].tensor);
    const uintptr_t key = node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [done, i](const variable_list& outputs, const variable_list&) {
          done(i);
          return outputs;
        }));
    hooks_.emplace_back(std::move(node), key);
  }
}

BackwardWatch::~BackwardWatch() {
  for (const auto& [node, key] : hooks_) node->del_post_hook(key);
}

}  // namespace tutti
