// The training steps that bench_kernels measures.
#include <algorithm>
#include <memory>
#include <utility>

#include <torch/torch.h>

#include "bench/kernels.h"
#include "bench/mnist_net.h"
#include "examples/common/gpt.h"

namespace bench {
namespace {

namespace nn = torch::nn;

constexpr double kRate = 1e-6;  // so small that the numbers of the last step are like those of the first one

// A block of two convolutions, whose input is added to their output (He and others 2015).
struct ResidualBlock : nn::Module {
  ResidualBlock(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        conv2(register_module("conv2", conv(out, out, 3, 1))),
        norm1(register_module("norm1", nn::BatchNorm2d(out))),
        norm2(register_module("norm2", nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out)
      shortcut = register_module("shortcut", nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
  }

  static nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut ? shortcut->forward(x) : x));
  }

  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  nn::Sequential shortcut = nullptr;
};

// ResNet-18 for images of 32 x 32: its first convolution is 3 x 3, and no pooling follows.
struct ResNet : nn::Module {
  ResNet() {
    int64_t in = 64;
    for (const int64_t out : {64, 128, 256, 512}) {
      blocks->push_back(std::make_shared<ResidualBlock>(in, out, out == 64 ? 1 : 2));
      blocks->push_back(std::make_shared<ResidualBlock>(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return last(blocks->forward(torch::relu(norm(conv(x)))).mean({2, 3}));
  }

  nn::Conv2d conv = register_module("conv", ResidualBlock::conv(3, 64, 3, 1));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(64));
  nn::Sequential blocks;
  nn::Linear last = register_module("last", nn::Linear(512, 10));
};

// Predicts the next character of a text.
struct CharacterLstm : nn::Module {
  CharacterLstm(int64_t width, int64_t hidden)
      : words(register_module("words", nn::Embedding(128, width))),
        layers(register_module("layers",
                               nn::LSTM(nn::LSTMOptions(width, hidden).num_layers(2).batch_first(true)))),
        last(register_module("last", nn::Linear(hidden, 128))) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    return last(std::get<0>(layers(words(tokens)))).flatten(0, 1);
  }

  nn::Embedding words;
  nn::LSTM layers;
  nn::Linear last;
};

// Parameters that modules share appear once.
std::vector<torch::Tensor> parameters_of(const nn::Module& network) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& parameter : network.parameters()) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& each) { return each.is_same(parameter); }))
      all.push_back(parameter);
  }
  return all;
}

template <class Network, class Optimizer>
std::function<void()> step_of(std::shared_ptr<Network> network, std::shared_ptr<Optimizer> optimizer,
                              const torch::Tensor& inputs, const torch::Tensor& targets) {
  return [=] {
    optimizer->zero_grad();
    torch::cross_entropy_loss(network->forward(inputs), targets).backward();
    optimizer->step();
  };
}

// Convolutions keep the layout of their inputs and weights.
template <class Network>
void lay_out(Network& network, torch::MemoryFormat format) {
  for (torch::Tensor& parameter : network.parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
}

std::function<void()> mnist(int64_t batch, torch::MemoryFormat format) {
  const auto network = std::make_shared<MnistNet>();
  lay_out(*network, format);
  const auto adam = std::make_shared<torch::optim::Adam>(network->parameters(), kRate);
  return step_of(network, adam, torch::randn({batch, 1, 28, 28}).contiguous(format),
                 torch::randint(10, {batch}));
}

std::function<void()> resnet(int64_t batch, torch::MemoryFormat format) {
  const auto network = std::make_shared<ResNet>();
  lay_out(*network, format);
  const auto sgd = std::make_shared<torch::optim::SGD>(
      network->parameters(), torch::optim::SGDOptions(kRate).momentum(0.9).weight_decay(5e-4));
  return step_of(network, sgd, torch::randn({batch, 3, 32, 32}).contiguous(format),
                 torch::randint(10, {batch}));
}

// Both networks for texts get characters, and predict them.
std::function<void()> gpt(int64_t batch, const example::GptOptions& options) {
  struct Flat : example::Gpt {
    using Gpt::Gpt;
    torch::Tensor forward(const torch::Tensor& tokens) { return Gpt::forward(tokens).flatten(0, 1); }
  };
  const auto network = std::make_shared<Flat>(options);
  const auto adam = std::make_shared<torch::optim::AdamW>(parameters_of(*network), kRate);
  const torch::Tensor tokens = torch::randint(options.vocabulary, {batch, options.context});
  return step_of(network, adam, tokens, tokens.flatten());
}

std::function<void()> lstm(int64_t width, int64_t hidden) {
  const auto network = std::make_shared<CharacterLstm>(width, hidden);
  const auto adam = std::make_shared<torch::optim::Adam>(network->parameters(), kRate);
  const torch::Tensor tokens = torch::randint(128, {32, 50});
  return step_of(network, adam, tokens, tokens.flatten());
}

}  // namespace

std::vector<StepCase> step_cases() {
  example::GptOptions large;
  large.context = 128;
  large.channels = 256;
  large.heads = 8;
  large.layers = 4;
  constexpr auto kContiguous = torch::MemoryFormat::Contiguous;
  constexpr auto kChannelsLast = torch::MemoryFormat::ChannelsLast;  // the Trainer's choice
  return {{"MNIST, batches of 64", [] { return mnist(64, kContiguous); }},
          {"MNIST channels last, batches of 64", [] { return mnist(64, kChannelsLast); }},
          {"ResNet-18, batches of 32", [] { return resnet(32, kContiguous); }},
          {"ResNet-18 channels last, batches of 32", [] { return resnet(32, kChannelsLast); }},
          {"GPT of 2 blocks, width 64", [] { return gpt(16, {}); }},
          {"GPT of 4 blocks, width 256", [=] { return gpt(8, large); }},
          {"LSTM of 2 layers, width 128", [] { return lstm(64, 128); }},
          {"LSTM of 2 layers, width 256", [] { return lstm(256, 256); }}};
}

}  // namespace bench
