// Products and convolutions of bfloat16 and float16 are those of float, rounded once.
#include <string>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/coverage.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::narrow_test {
namespace {

class Narrow : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { torch::manual_seed(33); }
  static at::Tensor drawn(at::IntArrayRef sizes) { return torch::randn(sizes).to(GetParam()); }
  static at::Tensor wide(const at::Tensor& tensor) { return tensor.to(at::kFloat); }
  // Compares with a result of widened operands.
  static void expect_rounded(const at::Tensor& result, const at::Tensor& of_wide) {
    EXPECT_EQ(result.scalar_type(), GetParam());
    EXPECT_TRUE(same_bits(result, of_wide.to(GetParam())));
  }
  const SameKernels same_;
};

TEST_P(Narrow, products_are_those_of_float_rounded_once) {
  const at::Tensor a = drawn({13, 300});
  const at::Tensor b = drawn({40, 300}).t();
  const at::Tensor bias = drawn({40});
  expect_rounded(computed_everywhere([&] { return torch::mm(a, b); }), torch::mm(wide(a), wide(b)));
  expect_rounded(torch::addmm(bias, a, b, 0.3, 2), torch::addmm(wide(bias), wide(a), wide(b), 0.3, 2));
  expect_rounded(torch::addmv(bias, b.t(), a[0]), torch::addmv(wide(bias), wide(b.t()), wide(a[0])));
  expect_rounded(torch::dot(a[0], a[1]), torch::dot(wide(a[0]), wide(a[1])));
  expect_rounded(torch::addr(a, bias.narrow(0, 0, 13), a[0]),
                 torch::addr(wide(a), wide(bias.narrow(0, 0, 13)), wide(a[0])));
  const at::Tensor c = drawn({3, 9, 70});
  const at::Tensor d = drawn({3, 70, 20});
  expect_rounded(torch::bmm(c, d), torch::bmm(wide(c), wide(d)));
  expect_rounded(torch::baddbmm(drawn({20}).zero_(), c, d), torch::bmm(wide(c), wide(d)));
  at::Tensor out = torch::empty({0}, GetParam());
  torch::mm_out(out, a, b);
  expect_rounded(out, torch::mm(wide(a), wide(b)));
  for (const NotCovered& each : not_covered_operators())
    EXPECT_NE(each.why, at::toString(GetParam())) << each.name;
}

TEST_P(Narrow, products_have_no_larger_error_than_those_of_libtorch) {
  const at::Tensor a = drawn({20, 5000});
  const at::Tensor b = drawn({5000, 30});
  const at::Tensor exact = torch::mm(a.to(at::kDouble), b.to(at::kDouble));
  const at::Tensor magnitude = torch::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
  // Half a unit in the last place of the result, and the sum in float.
  const double unit = GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8;
  const at::Tensor error = (torch::mm(a, b).to(at::kDouble) - exact).abs();
  EXPECT_TRUE((error <= exact.abs() * (unit * 1.001) + magnitude * 0x1p-20).all().item<bool>());
}

TEST_P(Narrow, convolutions_are_those_of_float_rounded_once) {
  const at::Tensor x = drawn({2, 6, 9, 10});
  const at::Tensor weight = drawn({8, 3, 3, 3});
  const at::Tensor bias = drawn({8});
  const auto forward = [&](const auto& of) {
    return torch::convolution(of(x), of(weight), of(bias), {2, 1}, {1, 1}, {1, 1}, false, {0, 0}, 2);
  };
  const auto itself = [](const at::Tensor& tensor) { return tensor; };
  const at::Tensor output = forward(itself);
  expect_rounded(output, forward(wide));
  const at::Tensor gradient = drawn(output.sizes());
  const auto backward = [&](const auto& of) {
    return torch::convolution_backward(of(gradient), of(x), of(weight), bias.sizes(), {2, 1}, {1, 1}, {1, 1},
                                       false, {0, 0}, 2, {true, true, true});
  };
  const auto narrow = backward(itself);
  const auto of_wide = backward(wide);
  expect_rounded(std::get<0>(narrow), std::get<0>(of_wide));
  expect_rounded(std::get<1>(narrow), std::get<1>(of_wide));
  expect_rounded(std::get<2>(narrow), std::get<2>(of_wide));
}

INSTANTIATE_TEST_SUITE_P(Types, Narrow, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& each) { return std::string(at::toString(each.param)); });

}  // namespace
}  // namespace tutti::kernels::narrow_test
