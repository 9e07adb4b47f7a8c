#pragma once

#include <memory>
#include <string>

#include <torch/torch.h>

#include "tutti/cluster/context.h"
#include "tutti/data/feed.h"
#include "tutti/data/source.h"
#include "tutti/train/trainable.h"

namespace tutti {

// The model of the tests in this folder: a small network with everything that makes it hard to get the same
// bits twice.
struct TestNet : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm(conv(x)));
    return head(torch::dropout(x.flatten(1), 0.3, is_training()));
  }
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(3));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(3 * 4 * 4, 4));
};

inline std::shared_ptr<TestNet> test_net(uint64_t seed = 1) {
  torch::manual_seed(seed);
  return std::make_shared<TestNet>();
}

inline LossOutput test_loss(TestNet& net, const Batch& batch) {
  const torch::Tensor prediction = net.forward(batch["image"]);
  return {torch::cross_entropy_loss(prediction, batch["label"]), prediction};
}

// Four classes of 6 x 6 images that can be told apart: each has a bright quadrant, with noise.
inline data::Feed test_feed(int64_t examples = 100) {
  torch::manual_seed(77);
  const torch::Tensor label = torch::arange(examples) % 4;
  torch::Tensor image = torch::rand({examples, 1, 6, 6});
  for (int64_t i = 0; i < examples; ++i) {
    const int64_t quadrant = i % 4;
    image[i][0].narrow(0, quadrant / 2 * 3, 3).narrow(1, quadrant % 2 * 3, 3).add_(1.0);
  }
  return data::Feed(data::from_tensors({{"image", image}, {"label", label}}));
}

inline RunConfig test_flags() {
  RunConfig config;
  config.training.batch = 4;
  config.training.lanes = 1;
  config.compute.threads = 1;
  config.compute.device = "cpu";
  config.output.log_level = "error";
  config.checkpoints.every = "0";
  config.training.stop_on_signals = true;
  return config;
}

inline Context test_context(const RunConfig& config) { return Context(config, Identity{}); }

}  // namespace tutti
