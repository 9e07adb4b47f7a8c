// The functions of one element, reductions, normalisations, losses and attention that bench_kernels measures.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "bench/kernels.h"

namespace bench {
namespace functions {
namespace {

using Cases = std::vector<KernelCase>;
using Shape = std::vector<int64_t>;

std::string text_of(const Shape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

void add(Cases& cases, const std::string& network, std::string call, std::function<void()> run) {
  cases.push_back({network, std::move(call), std::move(run)});
}

void add_relu(Cases& cases, const std::string& network, const Shape& shape) {
  const torch::Tensor x = torch::randn(shape);
  const torch::Tensor gradient = torch::randn(shape);
  add(cases, network, "relu " + text_of(shape), [=] { torch::relu(x); });
  add(cases, network, "relu " + text_of(shape) + ", backward",
      [=] { torch::threshold_backward(gradient, x, 0); });
}

void add_max_pool(Cases& cases, const std::string& network, const Shape& shape, int64_t kernel,
                  int64_t stride, bool channels_last) {
  const auto format = channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  const torch::Tensor x = torch::randn(shape).contiguous(format);
  const int64_t padding = kernel == stride ? 0 : kernel / 2;
  const auto pool = [=] { return torch::max_pool2d_with_indices(x, kernel, stride, padding); };
  const torch::Tensor indices = std::get<1>(pool());
  const torch::Tensor gradient = torch::randn(indices.sizes()).contiguous(format);
  const std::string name =
      fmt::format("max_pool{} {}{}", kernel, text_of(shape), channels_last ? " channels last" : "");
  add(cases, network, name, [=] { pool(); });
  add(cases, network, name + ", backward", [=] {
    torch::max_pool2d_with_indices_backward(gradient, x, kernel, stride, padding, 1, false, indices);
  });
}

// The gradient of a bias, or of any operand that was expanded.
void add_sum(Cases& cases, const std::string& network, const Shape& shape, const Shape& dims) {
  const torch::Tensor x = torch::randn(shape);
  add(cases, network, fmt::format("sum {} over {}", text_of(shape), fmt::join(dims, ",")),
      [=] { torch::sum(x, dims); });
}

void add_cross_entropy(Cases& cases, const std::string& network, int64_t rows, int64_t classes) {
  const torch::Tensor x = torch::randn({rows, classes});
  const torch::Tensor target = torch::randint(classes, {rows});
  const torch::Tensor logarithms = torch::log_softmax(x, 1);
  const torch::Tensor one = torch::ones({});
  const torch::Tensor total = torch::full({}, static_cast<double>(rows));
  const torch::Tensor gradient =
      torch::nll_loss_backward(one, logarithms, target, {}, at::Reduction::Mean, -100, total);
  const std::string shape = fmt::format(" {}x{}", rows, classes);
  add(cases, network, "log_softmax" + shape, [=] { torch::log_softmax(x, 1); });
  add(cases, network, "nll_loss" + shape, [=] { torch::nll_loss(logarithms, target); });
  add(cases, network, "nll_loss" + shape + ", backward",
      [=] { torch::nll_loss_backward(one, logarithms, target, {}, at::Reduction::Mean, -100, total); });
  add(cases, network, "log_softmax" + shape + ", backward",
      [=] { torch::_log_softmax_backward_data(gradient, logarithms, 1, torch::kFloat); });
  add(cases, network, "cross_entropy" + shape, [=] { torch::cross_entropy_loss(x, target); });
}

void add_mnist(Cases& cases) {
  for (const int64_t batch : {64, 128}) {
    add_relu(cases, "MNIST", {batch, 32, 28, 28});
    for (const bool channels_last : {false, true})
      add_max_pool(cases, "MNIST", {batch, 32, 28, 28}, 2, 2, channels_last);
    add_relu(cases, "MNIST", {batch, 500});
    add_sum(cases, "MNIST", {batch, 64, 14, 14}, {0, 2, 3});
    add_sum(cases, "MNIST", {batch, 500}, {0});
    add_cross_entropy(cases, "MNIST", batch, 10);
  }
}

void add_batch_norm(Cases& cases, const Shape& shape, bool channels_last) {
  const auto format = channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  const torch::Tensor x = torch::randn(shape).contiguous(format);
  const torch::Tensor gradient = torch::randn(shape).contiguous(format);
  const torch::Tensor weight = torch::randn({shape[1]});
  const torch::Tensor bias = torch::randn({shape[1]});
  const torch::Tensor mean = torch::zeros({shape[1]});
  const torch::Tensor variance = torch::ones({shape[1]});
  const auto forward = [=](bool training) {
    return torch::native_batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5);
  };
  const auto made = forward(true);
  const std::string name = "batch_norm " + text_of(shape) + (channels_last ? " channels last" : "");
  add(cases, "ResNet-18", name, [=] { forward(true); });
  add(cases, "ResNet-18", name + ", evaluation", [=] { forward(false); });
  add(cases, "ResNet-18", name + ", backward", [=] {
    torch::native_batch_norm_backward(gradient, x, weight, mean, variance, std::get<1>(made),
                                      std::get<2>(made), true, 1e-5, {true, true, true});
  });
}

void add_resnet(Cases& cases) {
  const std::vector<Shape> shapes = {{32, 64, 32, 32}, {32, 128, 16, 16}, {32, 256, 8, 8}, {32, 512, 4, 4}};
  for (const bool channels_last : {false, true})
    for (const Shape& shape : shapes) add_batch_norm(cases, shape, channels_last);
  add_relu(cases, "ResNet-18", shapes[1]);
  for (const bool channels_last : {false, true})
    add_max_pool(cases, "ResNet-18", {32, 64, 32, 32}, 3, 2, channels_last);
  const torch::Tensor x = torch::randn(shapes[3]);
  const torch::Tensor y = torch::randn(shapes[3]);
  add(cases, "ResNet-18", "add " + text_of(shapes[3]), [=] { torch::add(x, y); });
  add(cases, "ResNet-18", "adaptive_avg_pool " + text_of(shapes[3]), [=] {
    torch::adaptive_avg_pool2d(x, {1, 1});
  });
  add_cross_entropy(cases, "ResNet-18", 32, 10);
}

void add_layer_norm(Cases& cases, int64_t rows, int64_t width) {
  const torch::Tensor x = torch::randn({rows, width});
  const torch::Tensor gradient = torch::randn({rows, width});
  const torch::Tensor weight = torch::randn({width});
  const torch::Tensor bias = torch::randn({width});
  const auto forward = [=] { return torch::native_layer_norm(x, {width}, weight, bias, 1e-5); };
  const auto made = forward();
  const std::string name = fmt::format("layer_norm {}x{}", rows, width);
  add(cases, "GPT", name, [=] { forward(); });
  add(cases, "GPT", name + ", backward", [=] {
    torch::native_layer_norm_backward(gradient, x, {width}, std::get<1>(made), std::get<2>(made), weight,
                                      bias, {true, true, true});
  });
}

void add_attention(Cases& cases, int64_t batch, int64_t heads, int64_t length, int64_t features) {
  const Shape shape = {batch, heads, length, features};
  const auto made = [&] { return torch::randn(shape).requires_grad_(); };
  const torch::Tensor query = made();
  const torch::Tensor key = made();
  const torch::Tensor value = made();
  const torch::Tensor gradient = torch::randn(shape);
  const auto attend = [=] { return torch::scaled_dot_product_attention(query, key, value, {}, 0, true); };
  const std::string name = "attention " + text_of(shape);
  add(cases, "GPT", name, [=] {
    const torch::NoGradGuard without_gradients;
    attend();
  });
  add(cases, "GPT", name + ", forward and backward", [=] {
    torch::autograd::grad({attend()}, {query, key, value}, {gradient});
  });
  const torch::Tensor scores = torch::randn({batch * heads, length, length});
  const torch::Tensor weights = torch::softmax(scores, -1);
  add(cases, "GPT", "softmax " + text_of({batch * heads, length, length}),
      [=] { torch::softmax(scores, -1); });
  add(cases, "GPT", "softmax " + text_of({batch * heads, length, length}) + ", backward",
      [=] { torch::_softmax_backward_data(scores, weights, -1, torch::kFloat); });
}

void add_gpt(Cases& cases) {
  constexpr int64_t kBatch = 8;
  for (const auto& [width, length] : {std::pair<int64_t, int64_t>{128, 64}, {256, 128}, {512, 256}}) {
    const int64_t tokens = kBatch * length;
    add_layer_norm(cases, tokens, width);
    add_attention(cases, kBatch, 8, length, width / 8);
    const torch::Tensor x = torch::randn({tokens, 4 * width});
    const torch::Tensor gradient = torch::randn({tokens, 4 * width});
    const std::string shape = fmt::format(" {}x{}", tokens, 4 * width);
    add(cases, "GPT", "gelu" + shape, [=] { torch::gelu(x); });
    add(cases, "GPT", "gelu" + shape + ", backward", [=] { torch::gelu_backward(gradient, x); });
    add(cases, "GPT", "gelu by tanh" + shape, [=] { torch::gelu(x, "tanh"); });
    add(cases, "GPT", "gelu by tanh" + shape + ", backward",
        [=] { torch::gelu_backward(gradient, x, "tanh"); });
    add_sum(cases, "GPT", {tokens, 4 * width}, {0});
    const torch::Tensor thin = torch::randn({tokens, width});
    add(cases, "GPT", fmt::format("dropout {}x{}", tokens, width),
        [=] { torch::native_dropout(thin, 0.1, true); });
    const torch::Tensor table = torch::randn({1024, width});
    const torch::Tensor ids = torch::randint(1024, {kBatch, length});
    const torch::Tensor of_rows = torch::randn({kBatch, length, width});
    add(cases, "GPT", fmt::format("embedding {}x{}", tokens, width), [=] { torch::embedding(table, ids); });
    add(cases, "GPT", fmt::format("embedding {}x{}, backward", tokens, width),
        [=] { torch::embedding_dense_backward(of_rows, ids, 1024, -1, false); });
    add_cross_entropy(cases, "GPT", tokens, 1024);
  }
}

using One = torch::Tensor (*)(const torch::Tensor&);
using Two = torch::Tensor (*)(const torch::Tensor&, const torch::Tensor&);

void add_lstm(Cases& cases) {
  for (const int64_t hidden : {128, 256}) {
    const Shape shape = {32, 4 * hidden};
    const torch::Tensor x = torch::randn(shape);
    const torch::Tensor y = torch::rand(shape);
    const std::vector<std::pair<std::string, One>> functions = {{"sigmoid", torch::sigmoid},
                                                                {"tanh", torch::tanh}};
    for (const auto& [name, function] : functions)
      add(cases, "LSTM", name + " " + text_of(shape), [x, of = function] { of(x); });
    const std::vector<std::pair<std::string, Two>> gradients = {{"sigmoid", torch::sigmoid_backward},
                                                                {"tanh", torch::tanh_backward}};
    for (const auto& [name, function] : gradients)
      add(cases, "LSTM", name + " " + text_of(shape) + ", backward", [x, y, of = function] { of(x, y); });
    add_sum(cases, "LSTM", {32 * 50, 4 * hidden}, {0});
  }
}

// Functions that no network above has, of as many elements as fit the second-level cache.
void add_functions(Cases& cases) {
  const Shape shape = {1 << 16};
  const torch::Tensor x = torch::randn(shape);
  const torch::Tensor y = torch::randn(shape);
  const torch::Tensor z = torch::randn(shape);
  const torch::Tensor positive = torch::rand(shape) + 0.01;
  const torch::Tensor share = torch::rand(shape) * 1.9 - 0.95;
  const std::vector<std::pair<std::string, One>> of_any = {{"exp", torch::exp},
                                                           {"exp2", torch::exp2},
                                                           {"expm1", torch::expm1},
                                                           {"sigmoid", torch::sigmoid},
                                                           {"tanh", torch::tanh},
                                                           {"erf", torch::erf},
                                                           {"erfc", torch::erfc},
                                                           {"silu", torch::silu},
                                                           {"mish", torch::mish},
                                                           {"sin", torch::sin},
                                                           {"cos", torch::cos},
                                                           {"tan", torch::tan},
                                                           {"atan", torch::atan},
                                                           {"sinh", torch::sinh},
                                                           {"cosh", torch::cosh},
                                                           {"asinh", torch::asinh},
                                                           {"log_sigmoid", torch::log_sigmoid}};
  for (const auto& [name, function] : of_any) add(cases, "functions", name, [x, of = function] { of(x); });
  const std::vector<std::pair<std::string, One>> of_positive = {{"log", torch::log},
                                                                {"log1p", torch::log1p},
                                                                {"log2", torch::log2},
                                                                {"log10", torch::log10},
                                                                {"rsqrt", torch::rsqrt}};
  for (const auto& [name, function] : of_positive)
    add(cases, "functions", name, [positive, of = function] { of(positive); });
  const std::vector<std::pair<std::string, One>> of_share = {
      {"asin", torch::asin}, {"acos", torch::acos}, {"atanh", torch::atanh}, {"erfinv", torch::erfinv}};
  for (const auto& [name, function] : of_share)
    add(cases, "functions", name, [share, of = function] { of(share); });
  add(cases, "functions", "pow by tensor", [=] { torch::pow(positive, y); });
  add(cases, "functions", "pow by 2.5", [=] { torch::pow(positive, 2.5); });
  add(cases, "functions", "atan2", [=] { torch::atan2(x, y); });
  add(cases, "functions", "hypot", [=] { torch::hypot(x, y); });
  add(cases, "functions", "logaddexp", [=] { torch::logaddexp(x, y); });
  add(cases, "functions", "softplus", [=] { torch::softplus(x); });
  add(cases, "functions", "elu", [=] { torch::elu(x); });
  add(cases, "functions", "silu, backward", [=] { torch::silu_backward(x, y); });
  add(cases, "functions", "mish, backward", [=] { torch::mish_backward(x, y); });
  add(cases, "functions", "softplus, backward", [=] { torch::softplus_backward(x, y, 1, 20); });
  add(cases, "functions", "elu, backward", [=] { torch::elu_backward(x, 1, 1, 1, false, y); });
  add(cases, "functions", "add with a factor", [=] { torch::add(x, y, 0.1); });
  add(cases, "functions", "add_ with a factor", [=] { torch::Tensor(z).add_(y, 1e-9); });
  add(cases, "functions", "addcmul", [=] { torch::addcmul(x, y, z, 0.1); });
  add(cases, "functions", "addcdiv", [=] { torch::addcdiv(x, y, positive, 0.1); });
  add(cases, "functions", "lerp", [=] { torch::lerp(x, y, 0.1); });
  add(cases, "functions", "binary_cross_entropy",
      [=] { torch::binary_cross_entropy(share.abs(), share.abs()); });
}

void add_reductions(Cases& cases) {
  const torch::Tensor x = torch::randn({512, 1024});
  add(cases, "reductions", "sum of all", [=] { torch::sum(x); });
  add(cases, "reductions", "mean of all", [=] { torch::mean(x); });
  add(cases, "reductions", "norm of all", [=] { torch::norm(x); });
  add(cases, "reductions", "mean of rows", [=] { torch::mean(x, 1); });
  add(cases, "reductions", "var of rows", [=] { torch::var(x, 1); });
  add(cases, "reductions", "var of columns", [=] { torch::var(x, 0); });
  add(cases, "reductions", "logsumexp of rows", [=] { torch::logsumexp(x, 1); });
  add(cases, "reductions", "softmax of columns", [=] { torch::softmax(x, 0); });
  add(cases, "reductions", "cumsum of rows", [=] { torch::cumsum(x, 1); });
  const torch::Tensor few = torch::randn({1000});
  add(cases, "reductions", "sum of 1000", [=] { torch::sum(few); });
  const torch::Tensor images = torch::randn({32, 64, 16, 16});
  const torch::Tensor weight = torch::randn({64});
  add(cases, "reductions", "group_norm 32x64x16x16",
      [=] { torch::native_group_norm(images, weight, weight, 32, 64, 256, 8, 1e-5); });
  const torch::Tensor table = torch::randn({10000, 16});
  const torch::Tensor ids = torch::randint(10000, {512 * 20});
  const torch::Tensor offsets = torch::arange(0, 512 * 20, 20);
  add(cases, "reductions", "embedding_bag 512x20x16",
      [=] { torch::embedding_bag(table, ids, offsets, false, 0); });
  const torch::Tensor rows = torch::randn({512 * 20, 16});
  add(cases, "reductions", "index_add 10240x16", [=] { torch::Tensor(table).index_add_(0, ids, rows); });
  add(cases, "reductions", "index_put with sums 10240x16",
      [=] { torch::Tensor(table).index_put_({ids}, rows, /*accumulate=*/true); });
}

}  // namespace
}  // namespace functions

std::vector<KernelCase> function_cases() {
  torch::manual_seed(33);
  functions::Cases cases;
  functions::add_mnist(cases);
  functions::add_resnet(cases);
  functions::add_gpt(cases);
  functions::add_lstm(cases);
  functions::add_functions(cases);
  functions::add_reductions(cases);
  return cases;
}

}  // namespace bench
