// Small networks of the kinds that users train, which classify digits of 28x28 pixels.
#pragma once

#include <memory>

#include <torch/torch.h>

#include "examples/common/gpt.h"

namespace tutti::testing {

namespace nn = torch::nn;

// Two convolutions and an addition: the basic block of He and others (2016).
struct Residual : nn::Module {
  Residual(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        norm1(register_module("norm1", nn::BatchNorm2d(out))),
        norm2(register_module("norm2", nn::BatchNorm2d(out))) {
    if (in == out && stride == 1) return;
    shortcut->push_back(convolution(in, out, 1, stride));
    shortcut->push_back(nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }

  static nn::Conv2d convolution(int64_t in, int64_t out, int64_t side, int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut->is_empty() ? x : shortcut->forward(x)));
  }

  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  nn::Sequential shortcut;
};

// ResNet-18 for images of 32x32 pixels, with an eighth of its channels.
struct ResNet : nn::Module {
  ResNet() {
    constexpr int64_t kChannels = 8;
    blocks->push_back(Residual::convolution(3, kChannels, 3, 1));
    blocks->push_back(nn::BatchNorm2d(kChannels));
    blocks->push_back(nn::ReLU());
    int64_t in = kChannels;
    for (const int64_t out : {kChannels, 2 * kChannels, 4 * kChannels, 8 * kChannels}) {
      blocks->push_back(Residual(in, out, out == kChannels ? 1 : 2));
      blocks->push_back(Residual(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks);
    pred = register_module("pred", nn::Linear(in, 10));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor images = torch::constant_pad_nd(x, {2, 2, 2, 2}).expand({-1, 3, -1, -1});
    return pred(torch::adaptive_avg_pool2d(blocks->forward(images), 1).flatten(1));
  }

  nn::Sequential blocks;
  nn::Linear pred = nullptr;
};

// Reads an image row by row.
struct Lstm : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto [all, last] = lstm(x.squeeze(1));
    return pred(all.select(1, -1));
  }
  nn::LSTM lstm =
      register_module("lstm", nn::LSTM(nn::LSTMOptions(28, 20).num_layers(2).dropout(0.2).batch_first(true)));
  nn::Linear pred = register_module("pred", nn::Linear(20, 10));
};

// Reads an image as 49 tokens, the darkness of its parts; the token after the last is the digit.
struct TokenGpt : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor darkness = torch::max_pool2d(x, 4).flatten(1);
    return gpt->forward((darkness * 15).to(torch::kLong)).select(1, -1);
  }
  std::shared_ptr<example::Gpt> gpt = register_module(
      "gpt",
      std::make_shared<example::Gpt>(example::GptOptions{.vocabulary = 16, .context = 49, .channels = 32}));
};

}  // namespace tutti::testing
