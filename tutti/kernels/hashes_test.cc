// The bits of all operators of this module, one hash for each topic. They are the same with every compiler,
// at every optimisation, on every target of Highway, with any number of threads, and with every LibTorch that
// has the operators.
//
// A changed hash is a change of the bits that trainings have: SameKernels::kVersion has to grow with it. The
// test prints the new lines of kExpected.
#include "tutti/base/hashes.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::hashes_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Of kVersion 1.
// clang-format off
const std::map<std::string, std::string> kExpected = {
    {"attention", "e664d169a350406f"},
    {"convolutions", "14a2028ae97f5577"},
    {"functions", "2d169fd8e3769a74"},
    {"losses", "65ce0865e5970648"},
    {"normalisations", "589092f813d78d98"},
    {"products", "436844ec498c1315"},
    {"random_numbers", "66931b78367c1150"},
    {"recurrent_layers", "eed5afd656f87dae"},
    {"reductions", "43a03a9f7a2b8253"},
    {"scatters", "456b220835057cf6"},
    {"softmax", "37d4ccdbbaf6014a"},
};
// clang-format on

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16};
const std::vector<at::ScalarType> kWide = {at::kFloat, at::kDouble};

// Numbers from an integer sequence, which no function of a library has touched.
class Numbers {
 public:
  explicit Numbers(at::ScalarType type) : type_(type) {}

  // Between -1 and 1, from an odd multiple of 2^-32 on.
  at::Tensor operator()(at::IntArrayRef sizes) {
    const at::Tensor all = at::empty(sizes, at::kDouble);
    auto* const values = all.data_ptr<double>();
    for (int64_t i = 0; i < all.numel(); ++i) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      values[i] = (static_cast<double>(static_cast<int32_t>(state_ >> 32U)) + 0.5) * 0x1p-31;
    }
    return all.to(type_);
  }
  at::Tensor below(int64_t bound, at::IntArrayRef sizes) {
    const at::Tensor all = at::empty(sizes, at::kLong);
    auto* const values = all.data_ptr<int64_t>();
    for (int64_t i = 0; i < all.numel(); ++i) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      values[i] = static_cast<int64_t>(state_ >> 33U) % bound;
    }
    return all;
  }

 private:
  const at::ScalarType type_;
  uint64_t state_ = 33;
};

// The bits of one topic: of results and gradients, each under a name.
class Bits {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Tensor values = tensor.detach().contiguous();
    const std::string_view bytes(static_cast<const char*>(values.data_ptr()), values.nbytes());
    lines_ += fmt::format("{} {:016x}\n", name, xxh64(bytes));
  }
  // Computes `function` of these operands, and the gradients of its first result. Those of bfloat16 are left
  // out: autograd multiplies some of them by numbers, which LibTorch 1.13 rounds to bfloat16 before.
  void differentiate(const std::string& name, const Tensors& operands,
                     const std::function<Tensors(const Tensors&)>& function) {
    Tensors leaves;
    for (const at::Tensor& operand : operands)
      leaves.push_back(operand.detach().clone().requires_grad_(operand.is_floating_point()));
    const Tensors results = function(leaves);
    for (size_t i = 0; i < results.size(); ++i) add(fmt::format("{}, result {}", name, i), results[i]);
    if (!results[0].requires_grad() || results[0].scalar_type() == at::kBFloat16) return;
    Numbers numbers(results[0].scalar_type());
    results[0].backward(numbers(results[0].sizes()));
    for (size_t i = 0; i < leaves.size(); ++i) add(fmt::format("{}, gradient {}", name, i), leaves[i].grad());
  }

  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

std::string named(const char* name, at::ScalarType type) {
  return fmt::format("{} {}", name, at::toString(type));
}

// Chains of more than 256 terms, which are cut, and sizes that no vector divides.
void compute_products(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const at::Tensor a = draw({19, 611});
    const at::Tensor b = draw({611, 23});
    const at::Tensor c = draw({19, 23});
    const at::Tensor bias = draw({23});
    const at::Tensor batch = draw({3, 17, 29});
    bits.differentiate(name("mm"), {a, b}, [](const Tensors& x) -> Tensors { return {x[0].mm(x[1])}; });
    bits.differentiate(name("mm of transposed"), {a, b}, [](const Tensors& x) -> Tensors {
      return {x[1].t().mm(x[0].t()), x[0].slice(1, 0, 611, 3).mm(x[1].slice(0, 0, 611, 3))};
    });
    bits.differentiate(name("addmm"), {c, a, b},
                       [](const Tensors& x) -> Tensors { return {at::addmm(x[0], x[1], x[2], 0.7, -1.3)}; });
    bits.differentiate(name("linear"), {a, b, bias},
                       [](const Tensors& x) -> Tensors { return {at::linear(x[0], x[1].t(), x[2])}; });
    bits.differentiate(name("bmm"), {batch}, [](const Tensors& x) -> Tensors {
      return {x[0].bmm(x[0].transpose(1, 2)),
              at::baddbmm(x[0], x[0], at::eye(29, at::kFloat).to(x[0].scalar_type()).expand({3, 29, 29}), 0.3,
                          0.9)};
    });
    bits.differentiate(name("vectors"), {a, b, bias}, [](const Tensors& x) -> Tensors {
      return {at::addmv(x[2], x[1].t(), x[0][3], 0.3, 0.9), x[1].t().mv(x[0][1]),
              x[0][1].dot(x[1].select(1, 0)), at::addr(x[1].slice(0, 0, 23), x[2], x[2], 0.3, 0.9)};
    });
  }
}

void compute_convolutions(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const auto add = [&](const char* text, const at::Tensor& input, const at::Tensor& weight,
                         const auto& compute) {
      bits.differentiate(name(text), {input, weight, draw({weight.size(0)})},
                         [&](const Tensors& x) -> Tensors { return {compute(x[0], x[1], x[2])}; });
    };
    const at::Tensor images = draw({2, 6, 11, 13});
    const at::Tensor weight = draw({8, 6, 3, 3});
    const auto conv2d = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
      return at::conv2d(x, w, b, {1, 1}, {1, 1});
    };
    add("conv2d", images, weight, conv2d);
    add("conv2d, channels last", images.contiguous(at::MemoryFormat::ChannelsLast), weight, conv2d);
    add("conv2d with strides, dilation and groups", images, draw({8, 3, 3, 2}),
        [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return at::conv2d(x, w, b, {2, 1}, {2, 1}, {1, 2}, 2);
        });
    add("conv2d of each channel", images, draw({6, 1, 3, 3}),
        [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return at::conv2d(x, w, b, {1, 1}, {1, 1}, {1, 1}, 6);
        });
    // Named, since compilers compute the arguments of a call in different orders.
    const at::Tensor short_filters = draw({7, 5, 4});
    const at::Tensor series = draw({2, 5, 37});
    add("conv1d", series, short_filters, [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
      return at::conv1d(x, w, b, {2}, {1});
    });
    const at::Tensor deep_filters = draw({4, 3, 2, 3, 2});
    const at::Tensor volumes = draw({2, 3, 5, 6, 7});
    add("conv3d", volumes, deep_filters, [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
      return at::conv3d(x, w, b, {1, 2, 1}, {1, 1, 1});
    });
    add("conv_transpose2d", images, draw({6, 6, 3, 3}),
        [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
          return at::conv_transpose2d(x, w, b, {2, 2}, {1, 1}, {1, 1});
        });
  }
}

void compute_functions(Bits& bits) {
  using One = at::Tensor (*)(const at::Tensor&);
  // From 0 to 1, where all are defined; then also of negative and larger numbers.
  const std::vector<std::pair<const char*, One>> of_shares = {
      {"log", at::log},
      {"log2", at::log2},
      {"log10", [](const at::Tensor& x) { return at::log10(x.detach()); }},  // 1.13 has another gradient
      {"asin", at::asin},
      {"acos", at::acos},
      {"atanh", at::atanh},
      {"erfinv", at::erfinv},
      {"rsqrt", at::rsqrt},
      {"logit", [](const at::Tensor& x) { return at::logit(x, 0.01); }},
      {"pow", [](const at::Tensor& x) { return x.pow(2.7); }},
      {"pow of both", [](const at::Tensor& x) { return x.pow(x); }},
      {"xlogy", [](const at::Tensor& x) { return at::xlogy(x, x); }}};
  const std::vector<std::pair<const char*, One>> of_all = {
      {"exp", at::exp},
      {"exp2", at::exp2},
      {"expm1", at::expm1},
      {"tanh", at::tanh},
      {"sigmoid", at::sigmoid},
      {"erf", at::erf},
      {"erfc", at::erfc},
      {"silu", at::silu},
      {"mish", at::mish},
      {"selu", at::selu},
      {"sin", at::sin},
      {"cos", at::cos},
      {"tan", at::tan},
      {"atan", at::atan},
      {"sinh", at::sinh},
      {"cosh", at::cosh},
      {"asinh", at::asinh},
      {"log_sigmoid", at::log_sigmoid},
      {"log1p", [](const at::Tensor& x) { return at::log1p(x.abs()); }},
      {"acosh", [](const at::Tensor& x) { return at::acosh(x.abs() + 1); }},
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu by tanh", [](const at::Tensor& x) { return at::gelu(x, "tanh"); }},
      {"elu", [](const at::Tensor& x) { return at::elu(x, 1.5); }},
      {"softplus", [](const at::Tensor& x) { return at::softplus(x, 2, 3); }},
      {"softshrink", [](const at::Tensor& x) { return at::softshrink(x, 0.3); }},
      {"glu", [](const at::Tensor& x) { return at::glu(x.slice(0, 0, 1000)); }},
      {"atan2", [](const at::Tensor& x) { return at::atan2(x, x.flip({0})); }},
      {"hypot", [](const at::Tensor& x) { return at::hypot(x, x.flip({0})); }},
      {"logaddexp", [](const at::Tensor& x) { return at::logaddexp(x, x.flip({0})); }},
      {"huber_loss",
       [](const at::Tensor& x) { return at::huber_loss(x, x.detach().flip({0}), at::Reduction::Mean, 0.3); }},
      {"add and sub", [](const at::Tensor& x) { return x.add(x.flip({0}), 0.3).sub(x, 1.7); }},
      {"addcmul", [](const at::Tensor& x) { return at::addcmul(x, x, x.flip({0}), 0.3); }},
      {"addcdiv", [](const at::Tensor& x) { return at::addcdiv(x, x, x.flip({0}), 0.3); }},
      {"lerp", [](const at::Tensor& x) { return at::lerp(x, x.flip({0}), 0.3); }},
      {"lerp by a tensor", [](const at::Tensor& x) { return at::lerp(x, x.flip({0}), x); }}};
  for (const at::ScalarType type : kTypes) {
    const at::Tensor numbers = Numbers(type)({1003});
    for (const auto& [text, function] : of_shares)
      bits.differentiate(named(text, type), {numbers.abs()},
                         [f = function](const Tensors& x) -> Tensors { return {f(x[0])}; });
    for (const auto& [text, function] : of_all)
      bits.differentiate(named(text, type), {numbers * 8},
                         [f = function](const Tensors& x) -> Tensors { return {f(x[0])}; });
    if (type != at::kBFloat16)
      bits.differentiate(named("binary_cross_entropy", type), {numbers.abs()},
                         [](const Tensors& x) -> Tensors {
                           return {at::binary_cross_entropy(x[0], x[0].detach().flip({0}))};
                         });
    bits.add(named("series", type), at::linspace(-0.3, 17, 1001, numbers.options()));
    bits.add(named("series", type), at::arange(0.1, 700.7, 0.7, numbers.options()));
  }
}

void compute_random_numbers(Bits& bits) {
  at::Generator generator = at::detail::createCPUGenerator(77);
  for (const at::ScalarType type : kTypes) {
    const auto fresh = [&] { return at::zeros({1003}, type); };
    const auto name = [&](const char* text) { return named(text, type); };
    bits.add(name("uniform"), fresh().uniform_(-0.3, 1.7, generator));
    bits.add(name("normal"), fresh().normal_(0.3, 1.7, generator));
    bits.add(name("log_normal"), fresh().log_normal_(0.3, 0.7, generator));
    bits.add(name("exponential"), fresh().exponential_(1.7, generator));
    bits.add(name("cauchy"), fresh().cauchy_(0.3, 1.7, generator));
    bits.add(name("geometric"), fresh().geometric_(0.3, generator));
    bits.add(name("bernoulli"), fresh().bernoulli_(0.3, generator));
    bits.add(name("random"), fresh().random_(0, 100, generator));
    bits.add(name("multinomial"), at::multinomial(Numbers(at::kFloat)({5, 33}).abs(), 7, true, generator));
  }
  bits.add("randperm", at::randperm(1003, generator, at::TensorOptions(at::kLong)));
}

void compute_reductions(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const at::Tensor x = draw({37, 5, 211});
    const at::Tensor rows = draw({23, 41});
    const auto add = [&](const char* text, const at::Tensor& operand, const auto& compute) {
      bits.differentiate(name(text), {operand}, [&](const Tensors& of) -> Tensors { return compute(of[0]); });
    };
    for (const int64_t dim : {0, 1, 2}) {
      add("sums", x, [&](const at::Tensor& t) -> Tensors {
        return {t.sum(dim), t.mean(dim), t.detach().nansum(dim), t.detach().cumsum(dim)};
      });
      add("var", x, [&](const at::Tensor& t) -> Tensors {
        return {t.var(at::IntArrayRef{dim}, true), t.std(at::IntArrayRef{dim}, false)};
      });
      add("logsumexp", x,
          [&](const at::Tensor& t) -> Tensors { return {t.logsumexp(at::IntArrayRef{dim})}; });
    }
    add("sum of all", x, [](const at::Tensor& t) -> Tensors {
      return {t.sum(), t.mean(), t.std(), t.norm()};
    });
    for (const double order : {1.0, 2.0, 3.0})
      add("norm", x, [&](const at::Tensor& t) -> Tensors {
        return {at::norm(t, order, at::IntArrayRef{1}), at::linalg_vector_norm(t, order)};
      });
    add("prod", rows, [](const at::Tensor& t) -> Tensors { return {(t + 1.5).prod(1)}; });
    add("average pools", draw({2, 3, 13, 11}), [](const at::Tensor& t) -> Tensors {
      return {at::avg_pool2d(t, {3, 2}, {2, 1}, {1, 1}), at::adaptive_avg_pool2d(t, {5, 4})};
    });
    add("adaptive average pool", draw({2, 3, 13, 11}), [](const at::Tensor& t) -> Tensors {
      return {at::adaptive_avg_pool2d(t, {5, 4})};
    });
  }
}

void compute_softmax(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const at::Tensor x = draw({37, 5, 211}) * 9;
    const at::Tensor scores = draw({37, 19}) * 5;
    const at::Tensor labels = draw.below(19, {37});
    for (const int64_t dim : {0, 2}) {
      bits.differentiate(name("softmax"), {x},
                         [&](const Tensors& of) -> Tensors { return {of[0].softmax(dim)}; });
      bits.differentiate(name("log_softmax"), {x},
                         [&](const Tensors& of) -> Tensors { return {of[0].log_softmax(dim)}; });
    }
    if (type == at::kBFloat16) continue;
    const at::Tensor weights = draw({19}).abs();
    bits.differentiate(name("cross_entropy"), {scores}, [&](const Tensors& of) -> Tensors {
      return {at::cross_entropy_loss(of[0], labels), at::cross_entropy_loss(of[0], labels, weights)};
    });
    bits.differentiate(
        name("cross_entropy of images"), {draw({3, 7, 5, 4})}, [&](const Tensors& of) -> Tensors {
          return {at::cross_entropy_loss(of[0], labels.slice(0, 0, 30).repeat({2}).view({3, 5, 4}) % 7)};
        });
  }
}

// Losses that are composed of other operators.
void compute_losses(Bits& bits) {
  for (const at::ScalarType type : kWide) {
    const at::Tensor input = Numbers(type)({41, 23});
    const at::Tensor target = Numbers(type)({41, 23}).flip({0});
    for (const bool log_target : {false, true}) {
      const std::string name = fmt::format("{}, log_target {}", named("kl_div", type), log_target);
      bits.differentiate(name, {input, log_target ? target : target.abs()}, [&](const Tensors& x) -> Tensors {
        return {at::kl_div(x[0], x[1], at::Reduction::None, log_target).add(x[1].mul(x[0]))};
      });
    }
    for (const bool log_input : {false, true}) {
      const std::string name = fmt::format("{}, log_input {}", named("poisson_nll_loss", type), log_input);
      bits.differentiate(
          name, {log_input ? input : input.abs(), target.abs() * 3}, [&](const Tensors& x) -> Tensors {
            return {at::poisson_nll_loss(x[0], x[1], log_input, true, 1e-3, at::Reduction::None)
                        .add(x[1].mul(x[0]))};
          });
    }
  }
}

void compute_normalisations(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const at::Tensor rows = draw({37, 203});
    const at::Tensor images = draw({5, 6, 7, 9});
    const auto of = [&](int64_t size) { return draw({size}); };
    bits.differentiate(name("layer_norm"), {rows, of(203), of(203)},
                       [](const Tensors& x) -> Tensors { return {at::layer_norm(x[0], {203}, x[1], x[2])}; });
    bits.differentiate(name("group_norm"), {images, of(6), of(6)},
                       [](const Tensors& x) -> Tensors { return {at::group_norm(x[0], 3, x[1], x[2])}; });
    for (const bool training : {true, false}) {
      const at::Tensor mean = of(6);
      const at::Tensor variance = of(6).abs();
      bits.differentiate(name("batch_norm"), {images, of(6), of(6)}, [&](const Tensors& x) -> Tensors {
        return {at::batch_norm(x[0], x[1], x[2], mean, variance, training, 0.1, 1e-5, false)};
      });
      bits.add(name("batch_norm, mean"), mean);
      bits.add(name("batch_norm, variance"), variance);
    }
  }
}

void compute_scatters(Bits& bits) {
  for (const at::ScalarType type : kWide) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const at::Tensor table = draw({50, 13});
    const at::Tensor rows = draw({300, 13});
    const at::Tensor index = draw.below(50, {300});
    const at::Tensor offsets = torch::tensor({0, 0, 7, 100, 299, 300});
    bits.differentiate(name("embedding"), {table},
                       [&](const Tensors& x) -> Tensors { return {at::embedding(x[0], index)}; });
    for (const int64_t mode : {0, 1, 2})
      bits.differentiate(name("embedding_bag"), {table}, [&](const Tensors& x) -> Tensors {
        return {std::get<0>(at::embedding_bag(x[0], index, offsets, false, mode))};
      });
    bits.differentiate(name("index_add"), {table, rows}, [&](const Tensors& x) -> Tensors {
      return {x[0].index_add(0, index, x[1], 0.3), x[0].index_put({index}, x[1], true)};
    });
    bits.differentiate(name("scatter_add"), {table, rows}, [&](const Tensors& x) -> Tensors {
      return {x[0].scatter_add(0, index.unsqueeze(1).expand({300, 13}), x[1])};
    });
    bits.differentiate(name("index_select"), {table}, [&](const Tensors& x) -> Tensors {
      return {x[0].index_select(0, index), x[0].index({index})};
    });
    bits.add(name("bincount"), at::bincount(index, rows.select(1, 0).detach()));
  }
}

void compute_recurrent_layers(Bits& bits) {
  for (const at::ScalarType type : kWide) {
    Numbers draw(type);
    const auto name = [&](const char* text) { return named(text, type); };
    const auto parameters = [&](int64_t gates) -> Tensors {
      return {draw({5, 3, 7}),      draw({1, 3, 9}),   draw({gates * 9, 7}),
              draw({gates * 9, 9}), draw({gates * 9}), draw({gates * 9})};
    };
    bits.differentiate(name("lstm"), parameters(4), [](const Tensors& x) -> Tensors {
      return {std::get<0>(
          at::lstm(x[0], {x[1], x[1]}, {x[2], x[3], x[4], x[5]}, true, 1, 0, true, false, false))};
    });
    bits.differentiate(name("gru"), parameters(3), [](const Tensors& x) -> Tensors {
      return {std::get<0>(at::gru(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0, true, false, false))};
    });
    bits.differentiate(name("rnn_tanh"), parameters(1), [](const Tensors& x) -> Tensors {
      return {
          std::get<0>(at::rnn_tanh(x[0], x[1], {x[2], x[3], x[4], x[5]}, true, 1, 0, true, false, false))};
    });
  }
}

#if TUTTI_TORCH_AT_LEAST(2, 4)
void compute_attention(Bits& bits) {
  for (const at::ScalarType type : kTypes) {
    Numbers draw(type);
    const Tensors operands = {draw({2, 3, 17, 8}), draw({2, 3, 19, 8}), draw({2, 3, 19, 8})};
    const at::Tensor mask = draw({17, 19});
    for (const bool causal : {false, true}) {
      bits.differentiate(named("attention", type), operands, [&](const Tensors& x) -> Tensors {
        return {at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, causal)};
      });
    }
    bits.differentiate(named("attention with a mask", type), operands, [&](const Tensors& x) -> Tensors {
      return {at::scaled_dot_product_attention(x[0], x[1], x[2], mask)};
    });
    bits.differentiate(named("rms_norm", type), {draw({37, 203}), draw({203})},
                       [](const Tensors& x) -> Tensors { return {at::rms_norm(x[0], {203}, x[1], 1e-5)}; });
  }
}
#endif

struct Topic {
  std::string name;
  void (*compute)(Bits&);
};

class HashOf : public testing::TestWithParam<Topic> {};

TEST_P(HashOf, is_the_expected_one_on_every_target) {
  const SameKernels same;
  const int before = at::get_num_threads();
  int threads = 1;
  std::string first;
  on_every_target([&] {
    at::set_num_threads(1 + threads++ % 3);
    Bits bits;
    GetParam().compute(bits);
    if (first.empty()) first = bits.lines();
    EXPECT_EQ(bits.lines(), first);
  });
  at::set_num_threads(before);
  const std::string hash = fmt::format("{:016x}", xxh64(first));
  const auto expected = kExpected.find(GetParam().name);
  EXPECT_EQ(hash, expected == kExpected.end() ? "" : expected->second)
      << "these bits are others: if they are meant to change, SameKernels::kVersion has to grow, and the "
         "line is\n    {\""
      << GetParam().name << "\", \"" << hash << "\"},\nThe hash of each result:\n"
      << first;
}

INSTANTIATE_TEST_SUITE_P(
    Topics, HashOf,
    testing::Values(Topic{"products", compute_products}, Topic{"convolutions", compute_convolutions},
                    Topic{"functions", compute_functions}, Topic{"random_numbers", compute_random_numbers},
                    Topic{"reductions", compute_reductions}, Topic{"softmax", compute_softmax},
                    Topic{"losses", compute_losses}, Topic{"normalisations", compute_normalisations},
                    Topic{"scatters", compute_scatters}, Topic{"recurrent_layers", compute_recurrent_layers}),
    [](const auto& topic) { return topic.param.name; });
#if TUTTI_TORCH_AT_LEAST(2, 4)
INSTANTIATE_TEST_SUITE_P(NewerTopics, HashOf, testing::Values(Topic{"attention", compute_attention}),
                         [](const auto& topic) { return topic.param.name; });
#endif

}  // namespace
}  // namespace tutti::kernels::hashes_test
