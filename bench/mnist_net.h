#pragma once

#include <torch/torch.h>

namespace bench {

// The network of examples/01_mnist.
struct MnistNet : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return pred(torch::relu(dense(x.flatten(1))));
  }
  torch::nn::Conv2d conv1 =
      register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 5).padding(2)));
  torch::nn::Conv2d conv2 =
      register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 5).padding(2)));
  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(7 * 7 * 64, 500));
  torch::nn::Linear pred = register_module("pred", torch::nn::Linear(500, 10));
};

}  // namespace bench
