#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::reductions_test {
namespace {

// The order of operations of sums.h for a row of terms, written as plainly as possible.
template <class T>
double sum_in_order(const T* terms, size_t count) {
  std::vector<double> blocks;
  for (size_t begin = 0; begin < count; begin += 4096) {
    const size_t end = std::min(begin + 4096, count);
    const auto term = [&](size_t i) { return i < end ? terms[i] : T(0); };
    double lanes[16] = {};
    for (size_t i = begin; i < end; i += 64) {
      for (size_t l = 0; l < 16; ++l) {
        const T even = term(i + l) + term(i + l + 32);
        const T odd = term(i + l + 16) + term(i + l + 48);
        lanes[l] += static_cast<T>(even + odd);
      }
    }
    for (size_t half = 8; half > 0; half /= 2)
      for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    blocks.push_back(lanes[0]);
  }
  while (blocks.size() > 1) {
    std::vector<double> pairs;
    for (size_t i = 0; i < blocks.size(); i += 2)
      pairs.push_back(i + 1 < blocks.size() ? blocks[i] + blocks[i + 1] : blocks[i]);
    blocks = pairs;
  }
  return blocks.empty() ? 0 : blocks[0];
}

// Sums over the last dimension in the documented order.
at::Tensor sums_in_order(const at::Tensor& x) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
  at::Tensor sums = torch::empty({rows.size(0)}, at::kDouble);
  const auto count = static_cast<size_t>(rows.size(1));
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const at::Tensor row = rows[i];
    sums[i] = x.scalar_type() == at::kFloat ? sum_in_order(row.data_ptr<float>(), count)
                                            : sum_in_order(row.data_ptr<double>(), count);
  }
  return sums.reshape(x.sizes().slice(0, static_cast<size_t>(x.dim() - 1))).to(x.scalar_type());
}

// A tensor of three dimensions whose elements lie in order, in another order, or apart.
at::Tensor tensor(int64_t a, int64_t b, int64_t c, int how, at::ScalarType type) {
  const at::TensorOptions options(type);
  switch (how % 4) {
    case 0:
      return torch::randn({a, b, c}, options);
    case 1:
      return torch::randn({c, a, b}, options).permute({1, 2, 0});
    case 2:
      return torch::randn({b, c, a}, options).permute({2, 0, 1});
    default:
      return torch::randn({a, b + 1, c, 2}, options).select(3, 1).narrow(1, 1, b);
  }
}

struct Sizes {
  int64_t a, b, c;
};

const std::vector<Sizes> kSizes = {{1, 1, 1},    {2, 3, 5},     {3, 16, 17},  {7, 33, 8},
                                   {2, 0, 3},    {0, 4, 3},     {3, 100, 70}, {1, 4097, 3},
                                   {2, 2, 9000}, {1, 12290, 1}, {1, 1, 20000}};

class Reductions : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { torch::manual_seed(34); }
  const SameKernels same_;
};

TEST_P(Reductions, sum_in_the_documented_order_over_any_dimension_in_any_layout) {
  for (const Sizes& sizes : kSizes) {
    for (int how = 0; how < 4; ++how) {
      SCOPED_TRACE(testing::Message() << sizes.a << "x" << sizes.b << "x" << sizes.c << ", layout " << how);
      const at::Tensor x = tensor(sizes.a, sizes.b, sizes.c, how, GetParam());
      for (int64_t dim = 0; dim < 3; ++dim) {
        if (x.size(dim) == 0) continue;
        const at::Tensor sums = computed_everywhere([&] { return torch::sum(x, dim); });
        EXPECT_TRUE(same_bits(sums, sums_in_order(x.movedim(dim, 2)))) << "dimension " << dim;
      }
      EXPECT_TRUE(same_bits(computed_everywhere([&] { return torch::sum(x); }),
                            x.numel() == 0 ? torch::zeros({}, GetParam()) : sums_in_order(x.flatten())));
      if (x.numel() == 0) continue;
      const at::Tensor twice = computed_everywhere([&] { return torch::sum(x, {1, 2}); });
      EXPECT_TRUE(same_bits(twice, sums_in_order(x.flatten(1))));
    }
  }
}

TEST_P(Reductions, sum_dimensions_apart_one_after_the_other_in_any_layout) {
  const at::Tensor x = torch::randn({6, 5, 7, 9}, GetParam());
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor sums = computed_everywhere([&] { return torch::sum(x, {0, 2, 3}); });
  EXPECT_TRUE(same_bits(computed_everywhere([&] { return torch::sum(last, {0, 2, 3}); }), sums));
  if (GetParam() == at::kDouble) {
    EXPECT_TRUE(same_bits(sums, sums_in_order(sums_in_order(x.flatten(2)).t())));
  }
  EXPECT_TRUE(same_bits(torch::var(last, {0, 2, 3}), torch::var(x, {0, 2, 3})));
  EXPECT_TRUE(same_bits(torch::prod(last, 2), torch::prod(x, 2)));
}

TEST(ReductionsOfLibTorch, are_those_of_this_module_in_float64) {
  torch::manual_seed(35);
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(type));
    for (int how = 0; how < 4; ++how) {
      const at::Tensor x = tensor(4, 37, 70, how, at::kDouble).add_(how).to(type);
      // The references are computed by LibTorch's kernels; ours by these. Sums of floats have a part of a
      // rounding more, since four terms at a time are added as floats.
      const auto expect = [&](const auto& compute, double roundings) {
        const at::Tensor exact = compute(x.to(at::kDouble));
        const SameKernels same;
        const at::Tensor ours = computed_everywhere([&] { return compute(x); });
        EXPECT_EQ(ours.scalar_type(), type);
        ASSERT_EQ(ours.sizes(), exact.sizes());
        const double unit = std::pow(2, type == at::kFloat    ? -24
                                        : type == at::kDouble ? -46
                                        : type == at::kHalf   ? -11
                                                              : -8);
        const double denormal = type == at::kHalf ? std::pow(2, -25) : 1e-40;
        const at::Tensor error = (ours.to(at::kDouble) - exact).abs();
        const at::Tensor near = error <= exact.abs() * roundings * unit + denormal;
        EXPECT_TRUE(near.logical_or(ours.isinf()).all().item<bool>())
            << (error / exact.abs()).max().item<double>() / unit << " roundings, layout " << how;
      };
      for (int64_t dim = 0; dim < 3; ++dim) {
        expect([&](const at::Tensor& y) { return torch::var(y, {dim}, true, true); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::std(y, {dim}, false, false); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::norm(y, 2, {dim}); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::norm(y, 1, {dim}); }, 1.4);
        expect([&](const at::Tensor& y) { return torch::linalg_vector_norm(y, 0, {dim}, true); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::linalg_vector_norm(y, INFINITY, {dim}); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::prod(y, dim); }, 1.01);
        expect([&](const at::Tensor& y) { return torch::mean(y.abs(), dim); }, 1.4);
      }
      expect([&](const at::Tensor& y) { return torch::norm(y); }, 1.01);
      expect([&](const at::Tensor& y) { return torch::std(y); }, 1.01);
      expect(
          [&](const at::Tensor& y) {
            return std::get<0>(torch::var_mean(y, at::IntArrayRef({0, 2})));
          },
          1.01);
      expect([&](const at::Tensor& y) { return torch::nansum(y.abs(), {0, 2}, true); }, 1.4);
      expect([&](const at::Tensor& y) { return torch::sum(y.abs()); }, 1.01);
    }
  }
}

TEST_P(Reductions, of_nothing_are_those_of_libtorch) {
  const at::Tensor none = torch::empty({3, 0, 2}, GetParam());
  EXPECT_TRUE(torch::equal(torch::sum(none, 1), torch::zeros({3, 2}, GetParam())));
  EXPECT_TRUE(torch::equal(torch::prod(none, 1), torch::ones({3, 2}, GetParam())));
  EXPECT_TRUE(torch::mean(none).isnan().item<bool>());
  EXPECT_TRUE(torch::var(none, 1).isnan().all().item<bool>());
  EXPECT_EQ(torch::sum(none, 0).sizes(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(torch::sum(torch::full({}, 3, GetParam()), 0).item<double>(), 3);
  EXPECT_TRUE(torch::var(torch::ones({1}, GetParam())).isnan().item<bool>());
}

TEST_P(Reductions, keep_infinities_and_nan) {
  at::Tensor x = torch::randn({5, 100}, GetParam());
  x[0][99] = INFINITY;
  x[1][17] = -INFINITY;
  x[2][3] = NAN;
  x[3][0] = INFINITY;
  x[3][50] = -INFINITY;
  const at::Tensor sums = computed_everywhere([&] { return torch::sum(x, 1).nan_to_num(7, 8, 9); });
  EXPECT_EQ(sums[0].item<double>(), 8);
  EXPECT_EQ(sums[1].item<double>(), 9);
  EXPECT_EQ(sums[2].item<double>(), 7);
  EXPECT_EQ(sums[3].item<double>(), 7);
  EXPECT_TRUE(torch::var(x, 1).isnan().slice(0, 0, 4).all().item<bool>());
  EXPECT_TRUE(torch::isinf(torch::norm(x[0])).item<bool>());
  EXPECT_TRUE(torch::nansum(x, 1)[2].isfinite().item<bool>());
  // The squares of these have no float, but their sum has a root.
  const at::Tensor large = torch::full({4}, GetParam() == at::kFloat ? 1e30 : 1e100, GetParam());
  EXPECT_EQ(torch::norm(large).item<double>(), 2 * large[0].item<double>());
}

TEST_P(Reductions, take_and_give_other_types_as_libtorch_does) {
  const at::Tensor x = torch::randn({4, 9}, GetParam());
  EXPECT_EQ(torch::sum(x, 1, false, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(torch::sum(torch::ones({3}, at::kLong), 0).scalar_type(), at::kLong);
  EXPECT_TRUE(
      torch::equal(torch::mean(torch::arange(4), 0, false, GetParam()), torch::full({}, 1.5, GetParam())));
  at::Tensor out = torch::empty({9, 0}, GetParam());
  torch::sum_out(out, x, 0);
  EXPECT_TRUE(same_bits(out, torch::sum(x, 0)));
  EXPECT_THROW(torch::sum(x, 2), c10::Error);
  EXPECT_THROW(torch::sum(x, {1, 1}), c10::Error);
  at::Tensor other = torch::empty({4}, at::kBFloat16);
  EXPECT_THROW(torch::linalg_vector_norm_out(other, x, 2, {1}, false, at::kDouble), c10::Error);
}

TEST(ReductionsOfLibTorch, have_the_gradients_of_this_module_in_float64) {
  torch::manual_seed(5);
  const at::Tensor drawn = torch::randn({5, 6, 7}, at::kDouble);  // by LibTorch's kernels
  const auto gradient = [&](at::ScalarType type) {
    const at::Tensor x = drawn.to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    (x.sum(1).pow(2).sum() + x.mean(at::IntArrayRef({0, 2})).prod() + x.var(2).sum() +
     x.std(at::IntArrayRef({0, 1})).sum() + x.norm() + torch::logsumexp(x, 1).sum() +
     (x * x).sum_to_size({6, 1}).pow(2).sum() + x.prod(2).sum() + x.cumsum(1).pow(3).sum())
        .backward();
    return x.grad().to(at::kDouble);
  };
  const at::Tensor exact = gradient(at::kDouble);
  const SameKernels same;
  for (const auto& [type, bound] : {std::pair(at::kFloat, 1e-6), std::pair(at::kDouble, 1e-13)}) {
    const at::Tensor ours = computed_everywhere([type = type, &gradient] { return gradient(type); });
    EXPECT_LT((ours - exact).abs().max().item<double>(), bound * exact.abs().max().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Reductions, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& each) { return std::string(at::toString(each.param)); });

}  // namespace
}  // namespace tutti::kernels::reductions_test
