#include "tutti/kernels/products.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/coverage.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::products_test {
namespace {

// The order of operations of products.h, written as plainly as possible.
template <class T>
at::Tensor reference_of(const at::Tensor& a, const at::Tensor& b, T alpha, T beta, const at::Tensor& addend) {
  at::Tensor out = torch::empty({a.size(0), b.size(1)}, a.options());
  const at::Tensor added = beta == 0 ? out : addend.expand(out.sizes());
  const auto left = a.accessor<T, 2>();
  const auto right = b.accessor<T, 2>();
  auto result = out.accessor<T, 2>();
  for (int64_t i = 0; i < a.size(0); ++i) {
    for (int64_t j = 0; j < b.size(1); ++j) {
      T sum = 0;
      for (int64_t p0 = 0; p0 < a.size(1); p0 += 256) {
        T chain = 0;
        for (int64_t p = p0; p < std::min(p0 + 256, a.size(1)); ++p)
          chain = std::fma(left[i][p], right[p][j], chain);
        sum = p0 == 0 ? chain : sum + chain;
      }
      const T scaled = alpha == 1 ? sum : alpha * sum;
      result[i][j] = beta == 0 ? scaled : std::fma(beta, added.accessor<T, 2>()[i][j], scaled);
    }
  }
  return out;
}

at::Tensor reference(const at::Tensor& a, const at::Tensor& b, double alpha = 1, double beta = 0,
                     const at::Tensor& addend = {}) {
  return a.scalar_type() == at::kFloat
             ? reference_of<float>(a, b, static_cast<float>(alpha), static_cast<float>(beta), addend)
             : reference_of<double>(a, b, alpha, beta, addend);
}

// A matrix whose elements lie by rows, by columns, or apart.
at::Tensor matrix(int64_t rows, int64_t columns, int how, at::ScalarType type) {
  const at::TensorOptions options(type);
  switch (how % 3) {
    case 0:
      return torch::randn({rows, columns}, options);
    case 1:
      return torch::randn({columns, rows}, options).t();
    default:
      return torch::randn({rows, 2, columns + 1, 3}, options).select(3, 1).select(1, 1).narrow(1, 0, columns);
  }
}

struct Shape {
  int64_t m, n, k;
};

const std::vector<Shape> kShapes = {{1, 1, 1},    {3, 5, 7},    {12, 32, 256}, {13, 33, 257},
                                    {1, 40, 300}, {40, 1, 300}, {50, 10, 500}, {24, 100, 513},
                                    {7, 17, 0},   {0, 5, 3},    {5, 0, 3},     {64, 80, 90},
                                    {2, 200, 3},  {500, 3, 20}, {330, 210, 40}};

class Products : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { torch::manual_seed(33); }
  void TearDown() override { at::set_num_threads(threads_); }
  const SameKernels same_;
  const int threads_ = at::get_num_threads();
};

TEST_P(Products, have_the_bits_of_the_documented_order_on_every_target_and_with_any_threads) {
  for (const Shape& shape : kShapes) {
    for (int how = 0; how < 9; ++how) {
      SCOPED_TRACE(testing::Message() << shape.m << "x" << shape.n << "x" << shape.k << ", layout " << how);
      const at::Tensor a = matrix(shape.m, shape.k, how, GetParam());
      const at::Tensor b = matrix(shape.k, shape.n, how / 3, GetParam());
      EXPECT_TRUE(same_bits(computed_everywhere([&] { return torch::mm(a, b); }), reference(a, b)));
    }
  }
}

TEST_P(Products, scale_and_add_as_documented) {
  const at::TensorOptions options(GetParam());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.m << "x" << shape.n << "x" << shape.k);
    const at::Tensor a = matrix(shape.m, shape.k, 0, GetParam());
    const at::Tensor b = matrix(shape.k, shape.n, 1, GetParam());
    const std::vector<at::Tensor> addends = {
        torch::randn({shape.n}, options), torch::randn({shape.m, 1}, options),
        matrix(shape.m, shape.n, 1, GetParam()), torch::randn({}, options)};
    for (const at::Tensor& addend : addends) {
      for (const auto& [beta, alpha] : {std::pair(1.0, 1.0), std::pair(0.3, 1.0), std::pair(-2.0, 0.7)}) {
        const auto ours = [&, beta = beta, alpha = alpha] { return torch::addmm(addend, a, b, beta, alpha); };
        EXPECT_TRUE(same_bits(computed_everywhere(ours), reference(a, b, alpha, beta, addend)));
      }
    }
  }
}

TEST_P(Products, do_not_read_the_addend_if_beta_is_zero) {
  const at::TensorOptions options(GetParam());
  const at::Tensor a = torch::randn({5, 6}, options);
  const at::Tensor b = torch::randn({6, 7}, options);
  const at::Tensor nan = torch::full({7}, std::numeric_limits<double>::quiet_NaN(), options);
  EXPECT_TRUE(same_bits(torch::addmm(nan, a, b, 0), reference(a, b)));
  EXPECT_TRUE(torch::addmm(nan, a, b).isnan().all().item<bool>());
}

TEST_P(Products, of_batches_vectors_and_single_elements_have_the_same_order) {
  const at::TensorOptions options(GetParam());
  const at::Tensor a = torch::randn({3, 9, 300}, options);
  const at::Tensor b = torch::randn({3, 20, 300}, options).transpose(1, 2);
  const at::Tensor addend = torch::randn({9, 20}, options);
  const at::Tensor products = computed_everywhere([&] { return torch::bmm(a, b); });
  const at::Tensor sums = computed_everywhere([&] { return torch::baddbmm(addend, a, b, 0.5, 2); });
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(products[i], reference(a[i], b[i])));
    EXPECT_TRUE(same_bits(sums[i], reference(a[i], b[i], 2, 0.5, addend)));
  }

  const at::Tensor vector = torch::randn({300}, options);
  const at::Tensor column = vector.unsqueeze(1);
  EXPECT_TRUE(same_bits(torch::mv(a[0], vector), reference(a[0], column).squeeze(1)));
  const at::Tensor nine = torch::randn({9}, options);
  EXPECT_TRUE(same_bits(torch::addmv(nine, a[0], vector, 3, 0.1),
                        reference(a[0], column, 0.1, 3, nine.unsqueeze(1)).squeeze(1)));
  EXPECT_TRUE(same_bits(torch::addr(a[0], nine, vector, 2, -1),
                        reference(nine.unsqueeze(1), vector.unsqueeze(0), -1, 2, a[0])));
  for (const int64_t length : {0, 1, 300, 2048, 5000}) {
    const at::Tensor x = torch::randn({length, 2}, options).select(1, 0);
    const at::Tensor y = torch::randn({length}, options);
    const at::Tensor product = computed_everywhere([&] { return torch::dot(x, y); });
    EXPECT_TRUE(same_bits(product, reference(x.unsqueeze(0), y.unsqueeze(1)).squeeze())) << length;
  }
}

TEST_P(Products, into_given_tensors_may_overlap_their_operands) {
  const at::TensorOptions options(GetParam());
  at::Tensor a = torch::randn({8, 8}, options);
  const at::Tensor b = torch::randn({8, 8}, options);
  const at::Tensor want = reference(a, b, 1, 1, a);
  a.addmm_(a, b);
  EXPECT_TRUE(same_bits(a, want));

  at::Tensor out = torch::empty({16, 4}, options).t();  // by columns
  const at::Tensor c = torch::randn({8, 16}, options);
  torch::mm_out(out, b.narrow(0, 0, 4), c);
  EXPECT_TRUE(same_bits(out, reference(b.narrow(0, 0, 4), c)));
}

TEST_P(Products, of_infinities_nan_and_denormals_are_those_of_ieee) {
  const at::TensorOptions options(GetParam());
  at::Tensor a = torch::randn({20, 600}, options);
  at::Tensor b = torch::randn({600, 35}, options);
  a[3][7] = std::numeric_limits<double>::infinity();
  a[4][300] = std::numeric_limits<double>::quiet_NaN();
  a[5] *= GetParam() == at::kFloat ? 1e-42 : 1e-315;
  b[599][2] = -std::numeric_limits<double>::infinity();
  const at::Tensor result = computed_everywhere([&] { return torch::mm(a, b); });
  const at::Tensor want = reference(a, b);
  // The sign and the payload of NaN are not defined.
  EXPECT_TRUE(torch::equal(result.isnan(), want.isnan()));
  EXPECT_TRUE(same_bits(result.nan_to_num(0, 1, 2), want.nan_to_num(0, 1, 2)));
  EXPECT_NE(result[5][0].item<double>(), 0);  // a denormal number
}

TEST_P(Products, are_as_near_to_exact_ones_as_those_of_libtorch) {
  for (const Shape& shape : std::vector<Shape>{{50, 60, 500}, {30, 40, 20000}, {3, 2, 400000}}) {
    const at::Tensor a = matrix(shape.m, shape.k, 0, at::kFloat);
    const at::Tensor b = matrix(shape.k, shape.n, 1, at::kFloat);
    const at::Tensor exact = torch::mm(a.to(at::kDouble), b.to(at::kDouble));
    const at::Tensor magnitude = torch::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
    const double error = ((torch::mm(a, b).to(at::kDouble) - exact) / magnitude).abs().max().item<double>();
    // A sum of k terms in chains of 256: at most 256 + k / 256 roundings, which mostly cancel each other.
    EXPECT_LT(error, std::sqrt(256 + static_cast<double>(shape.k) / 256) * std::pow(2.0, -24)) << shape.k;
  }
}

// A drawn operand: its elements lie by rows, by columns, apart, or one row or column stands for all.
at::Tensor drawn_matrix(int64_t rows, int64_t columns, at::ScalarType type) {
  const int64_t how = torch::randint(5, {1}).item<int64_t>();
  if (how < 3) return matrix(rows, columns, static_cast<int>(how), type);
  return torch::randn({how == 3 ? 1 : rows, how == 3 ? columns : 1}, type).expand({rows, columns});
}

TEST_P(Products, of_drawn_shapes_layouts_and_factors_have_the_documented_order) {
  const auto drawn = [](int64_t end) { return torch::randint(end, {1}).item<int64_t>(); };
  for (int draw = 0; draw < 60; ++draw) {
    const int64_t m = drawn(drawn(5) == 0 ? 400 : 50);
    const int64_t n = drawn(drawn(5) == 0 ? 400 : 50);
    const int64_t k = drawn(drawn(5) == 0 ? 1200 : 70);
    const double alpha = drawn(2) == 0 ? 1 : torch::randn({1}).item<double>();
    const double beta = drawn(3) == 0 ? 1 : torch::randn({1}).item<double>();
    SCOPED_TRACE(testing::Message() << "draw " << draw << ": " << m << "x" << n << "x" << k);
    const at::Tensor a = drawn_matrix(m, k, GetParam());
    const at::Tensor b = drawn_matrix(k, n, GetParam());
    const at::Tensor addend = drawn_matrix(m, n, GetParam());
    const at::Tensor want = reference(a, b, alpha, beta, addend);
    at::set_num_threads(static_cast<int>(1 + drawn(4)));
    on_every_target([&] {
      EXPECT_TRUE(same_bits(torch::addmm(addend, a, b, beta, alpha), want));
      at::Tensor in_place = torch::empty({n, m}, a.options()).t().copy_(addend);
      in_place.addmm_(a, b, beta, alpha);
      EXPECT_TRUE(same_bits(in_place, want));
      at::Tensor out = torch::empty({0}, a.options());
      torch::baddbmm_out(out, addend.unsqueeze(0), a.unsqueeze(0), b.unsqueeze(0), beta, alpha);
      EXPECT_TRUE(same_bits(out, want.unsqueeze(0)));
    });
    const at::Tensor wide = torch::mm(a.to(at::kDouble), b.to(at::kDouble)) * alpha + addend * beta;
    EXPECT_TRUE(torch::allclose(want.to(at::kDouble), wide, 1e-4, 1e-3));
  }
}

TEST_P(Products, have_the_gradients_of_libtorch) {
  const at::TensorOptions options(GetParam());
  const auto gradients = [&](at::ScalarType type) {
    torch::manual_seed(4);
    const at::Tensor x = torch::randn({6, 5, 40}, options).to(type).requires_grad_();
    torch::nn::Linear first(40, 30);
    torch::nn::Linear second(30, 1);
    first->to(type);
    second->to(type);
    const at::Tensor hidden = first->forward(x);
    const at::Tensor attention = torch::bmm(hidden, hidden.transpose(1, 2));
    (second->forward(hidden).sum() + attention.pow(2).sum()).backward();
    return torch::cat({x.grad().flatten(), first->weight.grad().flatten(), first->bias.grad().flatten(),
                       second->weight.grad().flatten()});
  };
  const at::Tensor ours = gradients(GetParam());
  const at::Tensor exact = gradients(at::kDouble);
  EXPECT_LT((ours.to(at::kDouble) - exact).abs().max().item<double>() / exact.abs().max().item<double>(),
            1e-6);
}

TEST_P(Products, of_wrong_shapes_are_refused_by_libtorch) {
  const at::TensorOptions options(GetParam());
  EXPECT_THROW(torch::mm(torch::randn({2, 3}, options), torch::randn({2, 3}, options)), c10::Error);
  EXPECT_THROW(
      torch::addmm(torch::randn({4}, options), torch::randn({2, 3}, options), torch::randn({3, 3}, options)),
      c10::Error);
  EXPECT_THROW(torch::dot(torch::randn({2}, options), torch::randn({3}, options)), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Types, Products, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& each) { return std::string(at::toString(each.param)); });

bool is_remembered(std::string_view name, std::string_view why) {
  for (const NotCovered& each : not_covered_operators())
    if (each.name == name && each.why == why) return true;
  return false;
}

TEST(SameKernels, leave_other_types_to_libtorch_and_remember_those_that_round) {
  const at::Tensor complex = torch::ones({2, 2}, at::kComplexFloat);
  torch::mm(complex, complex);
  EXPECT_FALSE(is_remembered("aten::mm", "ComplexFloat")) << "LibTorch's kernels are in use";
  {
    const SameKernels same;
    const SameKernels again;
    EXPECT_EQ(torch::mm(complex, complex)[0][0].item<c10::complex<float>>().real(), 2);
    EXPECT_TRUE(is_remembered("aten::mm", "ComplexFloat"));
    const at::Tensor whole = torch::ones({2, 2}, at::kLong);
    EXPECT_EQ(torch::mm(whole, whole)[0][0].item<int64_t>(), 2);
    EXPECT_FALSE(is_remembered("aten::mm", "Long"));
  }
  const at::Tensor wider = torch::ones({2, 2}, at::kComplexDouble);
  torch::mm(wider, wider);
  EXPECT_FALSE(is_remembered("aten::mm", "ComplexDouble")) << "LibTorch's kernels are in use again";
}

TEST(SameKernels, replace_operators_without_a_warning) {
  testing::internal::CaptureStderr();
  { const SameKernels same; }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tutti::kernels::products_test
