#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tutti/cluster/context.h"

// A small net, and batches of examples for its lanes.
namespace tutti {

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
};

inline std::shared_ptr<Net> make_net(uint64_t seed) {
  torch::manual_seed(seed);
  return std::make_shared<Net>();
}

// The batch of one lane at one step.
struct LaneBatch {
  torch::Tensor x;
  torch::Tensor y;
};

inline std::vector<std::vector<LaneBatch>> make_batches(int64_t steps, int64_t lanes) {
  torch::manual_seed(5);
  std::vector<std::vector<LaneBatch>> batches(static_cast<size_t>(steps));
  for (auto& step : batches) {
    for (int64_t lane = 0; lane < lanes; ++lane)
      step.push_back({torch::randn({4 + lane, 5}), torch::randn({4 + lane, 3})});
  }
  return batches;
}

inline torch::Tensor loss_of(Net& net, const LaneBatch& batch) {
  return torch::mse_loss(net.forward(batch.x), batch.y);
}

inline Context context_of(int64_t lanes = 0, bool drop_remainder = true) {
  RunConfig config;
  config.training.drop_remainder = drop_remainder;
  config.compute.device = "cpu";
  config.compute.threads = 1;
  config.training.lanes = lanes;
  return Context(config, Identity{});
}

}  // namespace tutti
