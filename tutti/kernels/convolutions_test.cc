#include "tutti/kernels/convolutions.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include "tutti/kernels/coverage.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::convolutions_test {
namespace {

struct Case {
  std::vector<int64_t> input;   // images, channels, sizes
  std::vector<int64_t> weight;  // output channels (input channels if transposed), channels of a group, kernel
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  int64_t groups = 1;
  bool transposed = false;
  std::vector<int64_t> output_padding = {0};
};

const std::vector<Case> kCases = {
    {{2, 3, 8, 9}, {5, 3, 3, 3}, {1}, {1}, {1}},
    {{3, 1, 12, 12}, {20, 1, 5, 5}, {1}, {0}, {1}},
    {{2, 40, 7, 5}, {30, 40, 1, 1}, {1}, {0}, {1}},
    {{2, 20, 9, 8}, {17, 20, 3, 3}, {2}, {1}, {1}},
    {{2, 6, 9, 10}, {4, 6, 1, 1}, {2}, {0}, {1}},
    {{5, 70, 4, 4}, {33, 70, 3, 3}, {1}, {1}, {1}},
    {{2, 6, 11, 10}, {4, 3, 3, 2}, {2, 1}, {1, 0}, {1, 2}, 2},
    {{2, 8, 6, 7}, {8, 1, 3, 3}, {1}, {1}, {1}, 8},
    {{2, 4, 9, 9}, {6, 4, 3, 3}, {3}, {2}, {2}},
    {{1, 2, 20, 40}, {3, 2, 3, 3}, {1}, {1}, {1}},
    {{2, 3, 50}, {4, 3, 5}, {1}, {2}, {1}},
    {{2, 4, 31}, {6, 2, 3}, {2}, {1}, {2}, 2},
    {{2, 3, 5, 6, 4}, {4, 3, 3, 2, 3}, {1}, {1, 0, 1}, {1}},
    {{1, 2, 5, 6, 7}, {2, 2, 2, 3, 2}, {2, 1, 2}, {0, 1, 1}, {1}},
    {{2, 5, 4, 5}, {5, 6, 3, 3}, {2}, {1}, {1}, 1, true, {1}},
    {{2, 4, 5, 6}, {4, 3, 2, 3}, {1}, {0}, {1}, 2, true},
    {{2, 4, 9}, {4, 5, 4}, {3}, {1}, {1}, 1, true, {2}},
    {{1, 3, 3, 4, 3}, {3, 2, 3, 3, 3}, {2}, {1}, {1}, 1, true, {1}},
    // Channels that fill vectors.
    {{9, 16, 5, 4}, {32, 16, 3, 3}, {1}, {1}, {1}},
    {{3, 48, 7, 6}, {16, 48, 1, 1}, {2}, {0}, {1}},
    {{1, 32, 9, 9}, {64, 32, 5, 5}, {1}, {2}, {1}},
    {{2, 34, 9, 8}, {50, 17, 3, 2}, {2, 1}, {2, 1}, {1, 2}, 2},
    {{2, 16, 40}, {16, 16, 3}, {1}, {2}, {2}},
    {{1, 16, 3, 4, 5}, {48, 16, 2, 3, 3}, {1, 2, 1}, {1}, {1}},
    {{2, 16, 3, 4}, {16, 32, 3, 3}, {2}, {1}, {1}, 1, true, {1}},
    {{2, 64, 2, 2}, {16, 64, 7, 7}, {1}, {3}, {1}},
};

struct Kind {
  at::ScalarType type;
  bool channels_last;
};

at::Tensor in_format(const at::Tensor& tensor, const Kind& kind) {
  if (!kind.channels_last || tensor.dim() == 3) return tensor;
  return tensor.contiguous(tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d
                                             : at::MemoryFormat::ChannelsLast);
}

struct Operands {
  Operands(const Case& of, const Kind& kind)
      : input(in_format(torch::randn(of.input, kind.type), kind)),
        weight(in_format(torch::randn(of.weight, kind.type), kind)),
        bias(torch::randn({of.transposed ? of.weight[1] * of.groups : of.weight[0]}, kind.type)) {}

  at::Tensor input, weight, bias;
};

at::Tensor convolve(const Case& of, const Operands& on) {
  return torch::convolution(on.input, on.weight, on.bias, of.stride, of.padding, of.dilation, of.transposed,
                            of.output_padding, of.groups);
}

// A result of three dimensions of space, and the terms of each of its elements, in the order of
// convolutions.h.
template <class T>
class Chains {
 public:
  explicit Chains(int64_t elements) : all_(static_cast<size_t>(elements)) {}
  void add(int64_t element, T a, T b) {
    Chain& chain = all_[static_cast<size_t>(element)];
    if (chain.terms > 0 && chain.terms % 256 == 0) {
      chain.sum = chain.terms == 256 ? chain.last : chain.sum + chain.last;
      chain.last = 0;
    }
    chain.last = std::fma(a, b, chain.last);
    ++chain.terms;
  }
  T sum(int64_t element) const {
    const Chain& chain = all_[static_cast<size_t>(element)];
    return chain.terms <= 256 ? chain.last : chain.sum + chain.last;
  }

 private:
  struct Chain {
    T sum = 0;
    T last = 0;
    int64_t terms = 0;
  };
  std::vector<Chain> all_;
};

Space in_space(const std::vector<int64_t>& values, size_t dimensions, int64_t fill) {
  Space space = {fill, fill, fill};
  for (size_t d = 0; d < dimensions; ++d)
    space[3 - dimensions + d] = values.size() == 1 ? values[0] : values[d];
  return space;
}

std::vector<Space> places(const Space& size) {
  std::vector<Space> all;
  for (int64_t i = 0; i < size[0]; ++i)
    for (int64_t j = 0; j < size[1]; ++j)
      for (int64_t k = 0; k < size[2]; ++k) all.push_back({i, j, k});
  return all;
}

int64_t index_in(const Space& size, const Space& place) {
  return (place[0] * size[1] + place[1]) * size[2] + place[2];
}

struct Gradients {
  at::Tensor output, input, weight, bias;
};

// The definition of convolutions.h, written as plainly as possible: `large` are the images that a convolution
// reads, `small` those that it writes; a transposed one writes the large ones.
template <class T>
Gradients reference_of(const Case& of, const Operands& on, const at::Tensor& gradient) {
  const size_t dimensions = of.input.size() - 2;
  const Space stride = in_space(of.stride, dimensions, 1);
  const Space padding = in_space(of.padding, dimensions, 0);
  const Space dilation = in_space(of.dilation, dimensions, 1);
  const auto spatial = [&](const at::Tensor& tensor) {
    return in_space(tensor.sizes().slice(2).vec(), dimensions, 1);
  };
  const at::Tensor input = on.input.contiguous();
  const at::Tensor weight = on.weight.contiguous();
  const at::Tensor back = gradient.contiguous();
  const at::Tensor& large = of.transposed ? back : input;
  const at::Tensor& small = of.transposed ? input : back;
  const Space large_size = spatial(large);
  const Space small_size = spatial(small);
  const Space kernel = spatial(weight);
  const int64_t images = input.size(0);
  const int64_t ins = weight.size(1);
  const int64_t outs = weight.size(0) / of.groups;
  const T* const w = weight.data_ptr<T>();

  // Visits all terms: visit(large element, small element, weight element).
  const auto large_at = [&](int64_t n, int64_t g, int64_t i, const Space& x) {
    return ((n * of.groups + g) * ins + i) * size_of(large_size) + index_in(large_size, x);
  };
  const auto small_at = [&](int64_t n, int64_t g, int64_t o, const Space& j) {
    return ((n * of.groups + g) * outs + o) * size_of(small_size) + index_in(small_size, j);
  };
  const auto weight_at = [&](int64_t g, int64_t o, int64_t i, const Space& t) {
    return ((g * outs + o) * ins + i) * size_of(kernel) + index_in(kernel, t);
  };
  const auto value = [&](const T* data, bool inside, int64_t at) { return inside ? data[at] : T(0); };
  const auto to_small = [&](const T* from) {
    Chains<T> chains(small.numel());
    for (int64_t n = 0; n < images; ++n)
      for (int64_t g = 0; g < of.groups; ++g)
        for (int64_t o = 0; o < outs; ++o)
          for (const Space& j : places(small_size))
            for (const Space& t : places(kernel))
              for (int64_t i = 0; i < ins; ++i) {
                Space x;
                bool inside = true;
                for (size_t d = 0; d < 3; ++d) {
                  x[d] = j[d] * stride[d] + t[d] * dilation[d] - padding[d];
                  inside = inside && x[d] >= 0 && x[d] < large_size[d];
                }
                chains.add(small_at(n, g, o, j), w[weight_at(g, o, i, t)],
                           value(from, inside, inside ? large_at(n, g, i, x) : 0));
              }
    return chains;
  };
  const auto to_large = [&](const T* from) {
    Chains<T> chains(large.numel());
    for (int64_t n = 0; n < images; ++n)
      for (int64_t g = 0; g < of.groups; ++g)
        for (int64_t i = 0; i < ins; ++i)
          for (const Space& x : places(large_size))
            for (const Space& t : places(kernel)) {
              Space j;
              bool meets = true;
              bool inside = true;
              for (size_t d = 0; d < 3; ++d) {
                const int64_t at = x[d] + padding[d] - t[d] * dilation[d];
                meets = meets && at % stride[d] == 0;
                j[d] = at / stride[d];
                inside = inside && j[d] >= 0 && j[d] < small_size[d];
              }
              if (!meets) continue;
              for (int64_t o = 0; o < outs; ++o)
                chains.add(large_at(n, g, i, x), w[weight_at(g, o, i, t)],
                           value(from, inside, inside ? small_at(n, g, o, j) : 0));
            }
    return chains;
  };

  Gradients result{torch::empty_like(back), torch::empty_like(input), torch::empty_like(weight),
                   torch::empty_like(on.bias)};
  const Chains<T> outputs = of.transposed ? to_large(input.data_ptr<T>()) : to_small(input.data_ptr<T>());
  const Chains<T> inputs = of.transposed ? to_small(back.data_ptr<T>()) : to_large(back.data_ptr<T>());
  const int64_t plane = size_of(spatial(back));
  for (int64_t i = 0; i < back.numel(); ++i)
    result.output.data_ptr<T>()[i] = outputs.sum(i) + on.bias.data_ptr<T>()[i / plane % back.size(1)];
  for (int64_t i = 0; i < input.numel(); ++i) result.input.data_ptr<T>()[i] = inputs.sum(i);

  Chains<T> weights(weight.numel());
  for (int64_t g = 0; g < of.groups; ++g)
    for (int64_t o = 0; o < outs; ++o)
      for (int64_t i = 0; i < ins; ++i)
        for (const Space& t : places(kernel))
          for (int64_t n = 0; n < images; ++n)
            for (const Space& j : places(small_size)) {
              Space x;
              bool inside = true;
              for (size_t d = 0; d < 3; ++d) {
                x[d] = j[d] * stride[d] + t[d] * dilation[d] - padding[d];
                inside = inside && x[d] >= 0 && x[d] < large_size[d];
              }
              weights.add(weight_at(g, o, i, t), small.data_ptr<T>()[small_at(n, g, o, j)],
                          value(large.data_ptr<T>(), inside, inside ? large_at(n, g, i, x) : 0));
            }
  for (int64_t i = 0; i < weight.numel(); ++i) result.weight.data_ptr<T>()[i] = weights.sum(i);

  Chains<T> biases(on.bias.numel());
  for (int64_t i = 0; i < back.numel(); ++i) biases.add(i / plane % back.size(1), back.data_ptr<T>()[i], 1);
  for (int64_t i = 0; i < on.bias.numel(); ++i) result.bias.data_ptr<T>()[i] = biases.sum(i);
  return result;
}

Gradients reference(const Case& of, const Operands& on, const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kFloat ? reference_of<float>(of, on, gradient)
                                              : reference_of<double>(of, on, gradient);
}

class Convolutions : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { torch::manual_seed(33); }
};

TEST_P(Convolutions,
       and_their_gradients_have_the_bits_of_the_documented_order_on_every_target_and_with_any_threads) {
  const SameKernels same;
  for (size_t i = 0; i < kCases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const Case& of = kCases[i];
    const Operands on(of, GetParam());
    const at::Tensor output = computed_everywhere([&] { return convolve(of, on); });
    const at::Tensor gradient = in_format(torch::randn(output.sizes(), GetParam().type), GetParam());
    const Gradients want = reference(of, on, gradient);
    EXPECT_TRUE(same_bits(output, want.output));
    EXPECT_EQ(output.suggest_memory_format(), on.input.suggest_memory_format());
    const auto backward = [&] {
      return torch::convolution_backward(gradient, on.input, on.weight, on.bias.sizes(), of.stride,
                                         of.padding, of.dilation, of.transposed, of.output_padding, of.groups,
                                         {true, true, true});
    };
    at::Tensor by_input;
    at::Tensor by_weight;
    at::Tensor by_bias;
    computed_everywhere([&] {
      std::tie(by_input, by_weight, by_bias) = backward();
      return torch::cat({by_input.flatten(), by_weight.flatten(), by_bias});
    });
    EXPECT_TRUE(same_bits(by_input, want.input)) << "by input";
    EXPECT_TRUE(same_bits(by_weight, want.weight)) << "by weight";
    EXPECT_TRUE(same_bits(by_bias, want.bias)) << "by bias";
  }
}

TEST_P(Convolutions, agree_with_libtorch_in_value_gradient_and_second_gradient) {
  const auto everything = [&](const Case& of, const Operands& on, at::ScalarType type) {
    const Operands given = [&] {
      Operands copy = on;
      for (at::Tensor* each : {&copy.input, &copy.weight, &copy.bias})
        *each = each->to(type).requires_grad_();
      return copy;
    }();
    const at::Tensor output = convolve(of, given);
    const auto first =
        torch::autograd::grad({output.pow(2).sum()}, {given.input, given.weight, given.bias}, {}, true,
                              /*create_graph=*/true);
    const auto second =
        torch::autograd::grad({first[0].pow(2).sum() + first[1].sin().sum()}, {given.input, given.weight});
    std::vector<at::Tensor> all = {output, first[0], first[1], first[2], second[0], second[1]};
    for (at::Tensor& each : all) each = each.detach().to(at::kDouble).contiguous();
    return all;
  };
  for (size_t i = 0; i < kCases.size(); ++i) {
    const Operands on(kCases[i], GetParam());
    const std::vector<at::Tensor> exact = everything(kCases[i], on, at::kDouble);  // of LibTorch's kernels
    const SameKernels same;
    const std::vector<at::Tensor> ours = everything(kCases[i], on, GetParam().type);
    const double bound = GetParam().type == at::kFloat ? 2e-5 : 1e-12;
    for (size_t j = 0; j < ours.size(); ++j) {
      const double scale = exact[j].abs().max().item<double>();
      EXPECT_LT((ours[j] - exact[j]).abs().max().item<double>() / scale, bound)
          << "case " << i << ", value " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Convolutions,
                         testing::Values(Kind{at::kFloat, false}, Kind{at::kFloat, true},
                                         Kind{at::kDouble, false}, Kind{at::kDouble, true}),
                         [](const auto& each) {
                           return std::string(at::toString(each.param.type)) +
                                  (each.param.channels_last ? "ChannelsLast" : "");
                         });

// An operator that the tracer did not know would be replaced by what it calls.
TEST(Convolution, is_traced_as_that_of_libtorch) {
  const SameKernels same;
  const at::Tensor weight = torch::randn({3, 2, 3, 3});
  const auto traced = torch::jit::tracer::trace(
      {torch::randn({1, 2, 5, 5})},
      [&](torch::jit::Stack inputs) -> torch::jit::Stack {
        return {torch::conv2d(inputs[0].toTensor(), weight)};
      },
      [](const at::Tensor&) { return std::string(); });
  const auto nodes = traced.first->graph->nodes();
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                          [](const auto* node) { return node->kind() == at::aten::_convolution; }),
            1);
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(),
                          [](const auto* node) { return node->kind() == at::aten::empty; }),
            0);
}

}  // namespace
}  // namespace tutti::kernels::convolutions_test
