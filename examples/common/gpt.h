#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <torch/torch.h>

// A small GPT: a decoder of Transformers with learned positions and layer norms before each part (Radford and
// others 2019), whose output layer shares the weights of its input.
namespace example {

namespace nn = torch::nn;

struct GptOptions {
  int64_t vocabulary = 128;  // the characters of ASCII
  int64_t context = 64;      // the longest text that it reads
  int64_t channels = 64;
  int64_t heads = 4;
  int64_t layers = 2;
  double dropout = 0.1;
};

struct Attention : nn::Module {
  explicit Attention(const GptOptions& options)
      : heads(options.heads),
        all(register_module("all", nn::Linear(options.channels, 3 * options.channels))),
        out(register_module("out", nn::Linear(options.channels, options.channels))),
        drop(register_module("drop", nn::Dropout(options.dropout))) {}

  // A token sees itself and those before it.
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), channels = x.size(2);
    const int64_t width = channels / heads;
    const auto parts = all(x).view({batch, length, 3, heads, width}).permute({2, 0, 3, 1, 4});
    const torch::Tensor scores =
        torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(width));
    const auto later = torch::ones({length, length}, x.options().dtype(torch::kBool)).triu(1);
    const torch::Tensor weights =
        scores.masked_fill(later, -std::numeric_limits<float>::infinity()).softmax(3);
    return out(torch::matmul(drop(weights), parts[2]).transpose(1, 2).reshape({batch, length, channels}));
  }

  int64_t heads;
  nn::Linear all, out;
  nn::Dropout drop;
};

struct Block : nn::Module {
  explicit Block(const GptOptions& options)
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({options.channels})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({options.channels})))),
        attention(register_module("attention", std::make_shared<Attention>(options))),
        wide(register_module("wide", nn::Linear(options.channels, 4 * options.channels))),
        narrow(register_module("narrow", nn::Linear(4 * options.channels, options.channels))),
        drop(register_module("drop", nn::Dropout(options.dropout))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + drop(attention->forward(norm1(x)));
    return x + drop(narrow(torch::gelu(wide(norm2(x)))));
  }

  nn::LayerNorm norm1, norm2;
  std::shared_ptr<Attention> attention;
  nn::Linear wide, narrow;
  nn::Dropout drop;
};

// The output layer. It registers the weight of the input layer as its weight, which ties both.
struct Head : nn::Module {
  explicit Head(const torch::Tensor& tied) : weight(register_parameter("weight", tied)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::matmul(x, weight.t()); }

  torch::Tensor weight;
};

struct Gpt : nn::Module {
  explicit Gpt(const GptOptions& options)
      : words(register_module("words", nn::Embedding(options.vocabulary, options.channels))),
        positions(register_module("positions", nn::Embedding(options.context, options.channels))),
        drop(register_module("drop", nn::Dropout(options.dropout))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({options.channels})))),
        head(register_module("head", std::make_shared<Head>(words->weight))) {
    for (int64_t i = 0; i < options.layers; ++i) blocks->push_back(std::make_shared<Block>(options));
    register_module("blocks", blocks);
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.value().dim() > 1) item.value().normal_(0, 0.02);
    }
  }

  // Takes tokens, (examples, length), and returns the logits of the next one after each.
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = drop(words(tokens) + positions->weight.narrow(0, 0, tokens.size(1)));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head->forward(norm(x));
  }

  nn::Embedding words, positions;
  nn::Dropout drop;
  nn::LayerNorm norm;
  std::shared_ptr<Head> head;
  nn::ModuleList blocks;
};

}  // namespace example
