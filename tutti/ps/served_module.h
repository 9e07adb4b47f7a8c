#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "tutti/base/error.h"

namespace tutti {

// A module and its forward, as they are served to other tasks.
struct ServedModule {
  using Tensors = std::vector<torch::Tensor>;

  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors& inputs)> forward;
};

namespace internal {

using Tensors = ServedModule::Tensors;

inline Tensors outputs_of(torch::Tensor output) { return {std::move(output)}; }
inline Tensors outputs_of(Tensors outputs) { return outputs; }
template <class... Outputs>
Tensors outputs_of(const std::tuple<Outputs...>& outputs) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, outputs);
}

// Calls Net::forward with one, two or three tensors.
template <class Net>
Tensors call_forward(Net& net, const Tensors& in) {
  if constexpr (requires { outputs_of(net.forward(in[0])); }) {
    if (in.size() == 1) return outputs_of(net.forward(in[0]));
  }
  if constexpr (requires { outputs_of(net.forward(in[0], in[1])); }) {
    if (in.size() == 2) return outputs_of(net.forward(in[0], in[1]));
  }
  if constexpr (requires { outputs_of(net.forward(in[0], in[1], in[2])); }) {
    if (in.size() == 3) return outputs_of(net.forward(in[0], in[1], in[2]));
  }
  fail(ErrorKind::InvalidArgument, "its forward does not take {} tensors", in.size());
}

}  // namespace internal

// Net::forward has to take up to three tensors and return one tensor, or several in a vector or tuple. For
// any other signature, fill in a ServedModule with a function of your own.
template <class Net>
ServedModule make_served(std::shared_ptr<Net> net) {
  return {net, [net](const ServedModule::Tensors& in) { return internal::call_forward(*net, in); }};
}

template <class Net>
ServedModule make_served(const torch::nn::ModuleHolder<Net>& net) {
  return make_served(net.ptr());
}

}  // namespace tutti
