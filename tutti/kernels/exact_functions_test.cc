#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::exact_functions_test {
namespace {

// All pairs of some numbers, as two tensors.
struct Pairs {
  explicit Pairs(at::ScalarType type) {
    const double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> some = {0, 1, 0.3, 2.5, 7, 1e-3, 1e30, 1e-40, 123456.7, infinity};
    const size_t count = some.size();
    for (size_t i = 0; i < count; ++i) some.push_back(-some[i]);
    some.push_back(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor all = torch::tensor(some, at::kDouble).to(type);
    const auto size = static_cast<int64_t>(some.size());
    x = all.repeat({size});
    y = all.repeat_interleave(size);
  }

  at::Tensor x;
  at::Tensor y;
};

template <class T, class Reference>
void expect_elements(const Pairs& pairs, const at::Tensor& got, const Reference& reference) {
  for (int64_t i = 0; i < got.numel(); ++i) {
    const T x = pairs.x.data_ptr<T>()[i];
    const T y = pairs.y.data_ptr<T>()[i];
    const T expected = reference(x, y);
    const T value = got.data_ptr<T>()[i];
    const bool same = std::isnan(expected)
                          ? std::isnan(value)
                          : value == expected && std::signbit(value) == std::signbit(expected);
    EXPECT_TRUE(same) << value << " of " << x << " and " << y << ", expected " << expected;
  }
}

template <class T>
void expect_all(at::ScalarType type) {
  const Pairs pairs(type);
  const auto everywhere = [&](auto function) {
    return computed_everywhere([&] { return function(pairs.x, pairs.y); });
  };
  expect_elements<T>(pairs, everywhere([](auto& x, auto& y) { return torch::fmod(x, y); }),
                     [](T x, T y) { return std::fmod(x, y); });
  // Python's remainder, which has the sign of the divisor.
  expect_elements<T>(pairs, everywhere([](auto& x, auto& y) { return torch::remainder(x, y); }),
                     [](T x, T y) {
                       const T rest = std::fmod(x, y);
                       return rest == 0 || std::signbit(rest) == std::signbit(y) ? rest : rest + y;
                     });
  expect_elements<T>(pairs, everywhere([](auto& x, auto& y) { return torch::fmax(x, y); }),
                     [](T x, T y) { return x == y ? (std::signbit(x) ? y : x) : std::fmax(x, y); });
  expect_elements<T>(pairs, everywhere([](auto& x, auto& y) { return torch::fmin(x, y); }),
                     [](T x, T y) { return x == y ? (std::signbit(x) ? x : y) : std::fmin(x, y); });
}

TEST(ExactFunctions, are_those_of_the_c_library) {
  const SameKernels same;
  expect_all<float>(at::kFloat);
  expect_all<double>(at::kDouble);
}

TEST(ExactFunctions, leave_whole_numbers_to_libtorch) {
  const SameKernels same;
  const at::Tensor x = torch::tensor({7, -7, 8}, at::kLong);
  EXPECT_TRUE(torch::equal(torch::remainder(x, 3), torch::tensor({1, 2, 2}, at::kLong)));
  EXPECT_TRUE(torch::equal(torch::fmod(x, 3), torch::tensor({1, -1, 2}, at::kLong)));
  EXPECT_TRUE(torch::equal(torch::remainder(10, x), torch::tensor({3, -4, 2}, at::kLong)));
  EXPECT_TRUE(
      torch::equal(torch::remainder(x.to(at::kDouble), 2.5), torch::tensor({2.0, 0.5, 0.5}, at::kDouble)));
}

TEST(ExactFunctions, give_the_gradient_of_smooth_l1_loss) {
  torch::manual_seed(2);
  const at::Tensor target = torch::randn({500}, at::kDouble);
  const at::Tensor input = torch::randn({500}, at::kDouble);
  const auto gradient = [&](at::ScalarType type) {
    const at::Tensor x = input.to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    torch::smooth_l1_loss(x, target.to(type), at::Reduction::Mean, 0.7).mul(500).backward();
    return x.grad().to(at::kDouble);
  };
  const at::Tensor exact = gradient(at::kDouble);
  const SameKernels same;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor ours = computed_everywhere([&] { return gradient(type); });
    EXPECT_LT((ours - exact).abs().max().item<double>(), type == at::kFloat ? 1e-6 : 1e-15);
  }
}

}  // namespace
}  // namespace tutti::kernels::exact_functions_test
