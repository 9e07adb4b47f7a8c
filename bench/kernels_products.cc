// The products and convolutions that bench_kernels measures.
#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/kernels.h"

namespace bench {
namespace {

using Cases = std::vector<KernelCase>;

void add(Cases& cases, const std::string& network, std::string call, std::function<void()> run) {
  cases.push_back({network, std::move(call), std::move(run)});
}

// A linear layer, as autograd computes it: forward, the gradient by its input, and the one by its weight.
void add_linear(Cases& cases, const std::string& network, int64_t rows, int64_t in, int64_t out) {
  const torch::Tensor x = torch::randn({rows, in});
  const torch::Tensor weight = torch::randn({out, in});
  const torch::Tensor bias = torch::randn({out});
  const torch::Tensor gradient = torch::randn({rows, out});
  const std::string shape = fmt::format("linear {} x {} -> {}", rows, in, out);
  add(cases, network, shape + ", forward", [=] { torch::addmm(bias, x, weight.t()); });
  add(cases, network, shape + ", by input", [=] { torch::mm(gradient, weight); });
  add(cases, network, shape + ", by weight", [=] { torch::mm(gradient.t(), x); });
}

struct Convolution {
  int64_t batch, in, out, size, kernel, stride;
  bool first;  // its input needs no gradient
};

void add_convolution(Cases& cases, const std::string& network, const Convolution& of, bool channels_last) {
  const auto format = channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  const torch::Tensor x = torch::randn({of.batch, of.in, of.size, of.size}).contiguous(format);
  const torch::Tensor weight = torch::randn({of.out, of.in, of.kernel, of.kernel}).contiguous(format);
  const int64_t padding = of.kernel / 2;
  const auto forward = [=] { return torch::conv2d(x, weight, {}, of.stride, padding); };
  const torch::Tensor gradient = torch::randn_like(forward());
  const auto backward = [=](bool by_input, bool by_weight) {
    torch::convolution_backward(gradient, x, weight, at::OptionalIntArrayRef(), {of.stride, of.stride},
                                {padding, padding}, {1, 1}, false, {0, 0}, 1, {by_input, by_weight, false});
  };
  const std::string shape = fmt::format(
      "conv{} {} x {}x{}x{} -> {}{}{}", of.kernel, of.batch, of.in, of.size, of.size, of.out,
      of.stride == 1 ? "" : fmt::format(" stride {}", of.stride), channels_last ? " channels last" : "");
  add(cases, network, shape + ", forward", [=] { forward(); });
  if (!of.first) add(cases, network, shape + ", by input", [=] { backward(true, false); });
  add(cases, network, shape + ", by weight", [=] { backward(false, true); });
}

void add_mnist(Cases& cases) {
  for (const int64_t batch : {64, 128}) {
    add_convolution(cases, "MNIST", {batch, 1, 32, 28, 5, 1, true}, false);
    add_convolution(cases, "MNIST", {batch, 32, 64, 14, 5, 1, false}, false);
    add_linear(cases, "MNIST", batch, 3136, 500);
    add_linear(cases, "MNIST", batch, 500, 10);
  }
}

void add_resnet(Cases& cases) {
  const std::vector<Convolution> layers = {
      {32, 3, 64, 32, 3, 1, true},     {32, 64, 64, 32, 3, 1, false},   {32, 64, 128, 32, 3, 2, false},
      {32, 64, 128, 32, 1, 2, false},  {32, 128, 128, 16, 3, 1, false}, {32, 128, 256, 16, 3, 2, false},
      {32, 128, 256, 16, 1, 2, false}, {32, 256, 256, 8, 3, 1, false},  {32, 256, 512, 8, 3, 2, false},
      {32, 256, 512, 8, 1, 2, false},  {32, 512, 512, 4, 3, 1, false}};
  for (const bool channels_last : {false, true})
    for (const Convolution& layer : layers) add_convolution(cases, "ResNet-18", layer, channels_last);
  add_linear(cases, "ResNet-18", 32, 512, 10);
}

void add_gpt(Cases& cases) {
  constexpr int64_t kBatch = 8;
  for (const auto& [width, length] : {std::pair<int64_t, int64_t>{128, 64}, {256, 128}, {512, 256}}) {
    const int64_t tokens = kBatch * length;
    add_linear(cases, "GPT", tokens, width, 3 * width);
    add_linear(cases, "GPT", tokens, width, 4 * width);
    add_linear(cases, "GPT", tokens, 4 * width, width);
    const int64_t heads = kBatch * 8;
    const int64_t head = width / 8;
    const torch::Tensor query = torch::randn({heads, length, head});
    const torch::Tensor key = torch::randn({heads, length, head});
    const torch::Tensor weights = torch::randn({heads, length, length});
    const std::string shape = fmt::format("bmm {} x {} x {}", heads, length, head);
    add(cases, "GPT", shape + ", scores", [=] { torch::bmm(query, key.transpose(1, 2)); });
    add(cases, "GPT", shape + ", values", [=] { torch::bmm(weights, key); });
    add(cases, "GPT", shape + ", by values", [=] { torch::bmm(weights.transpose(1, 2), query); });
  }
}

void add_lstm(Cases& cases) {
  for (const auto& [in, hidden] : {std::pair<int64_t, int64_t>{64, 128}, {256, 256}}) {
    add_linear(cases, "LSTM", 32, hidden, 4 * hidden);   // of one step
    add_linear(cases, "LSTM", 32 * 50, in, 4 * hidden);  // of all steps
  }
}

}  // namespace

std::vector<KernelCase> product_cases() {
  torch::manual_seed(33);
  Cases cases;
  add_mnist(cases);
  add_resnet(cases);
  add_gpt(cases);
  add_lstm(cases);
  return cases;
}

}  // namespace bench
