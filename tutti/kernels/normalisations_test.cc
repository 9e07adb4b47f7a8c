#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_references.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::normalisations_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Gradients are differences of larger numbers.
constexpr double kRoundings = 16;

// The result of a function of x, weight and bias, and the gradients of all three.
template <class Function>
Tensors with_gradients(Inputs& draw, const at::Tensor& x, const std::vector<int64_t>& parameters,
                       const Function& function) {
  const at::Tensor input = x.detach().requires_grad_();
  const at::Tensor weight = draw(parameters).requires_grad_();
  const at::Tensor bias = draw(parameters).requires_grad_();
  const at::Tensor result = function(input, weight, bias);
  result.backward(draw(x.sizes()).to(result.scalar_type()));
  return {result, input.grad(), weight.grad(), bias.grad()};
}

TEST(LayerNorm, is_that_of_libtorch) {
  for (const at::ScalarType type : kReducedTypes) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{1, 3}, {3, 10}, {7, 64}, {33, 100}, {2, 3, 4099}, {4200, 3}}) {
      for (const double shift : {0., 30.}) {
        SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " moved by " << shift);
        expect_like_libtorch(type, kRoundings * (1 + shift), [&](Inputs& draw) {
          const at::Tensor x = draw(sizes, 1, shift);
          return with_gradients(draw, x, {sizes.back()},
                                [&](const auto& input, const auto& w, const auto& b) {
                                  return torch::layer_norm(input, {sizes.back()}, w, b, 1e-5);
                                });
        });
      }
    }
    expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
      const at::Tensor x = draw({5, 4, 6}).transpose(0, 2);
      return {torch::layer_norm(x, {4, 5}), torch::layer_norm(torch::ones_like(x), {5}),
              std::get<1>(torch::native_layer_norm(x, {5}, {}, {}, 1e-5)),
              std::get<2>(torch::native_layer_norm(x, {5}, {}, {}, 1e-5))};
    });
  }
}

TEST(BatchNorm, is_that_of_libtorch_in_training_and_evaluation) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{5, 3},
                                                                               {4, 17, 9},
                                                                               {2, 3, 7, 5},
                                                                               {6, 20, 4, 4},
                                                                               {2, 70, 1, 1},
                                                                               {2, 3, 2, 3, 4},
                                                                               {1, 2, 90, 60}}) {
      for (const bool training : {true, false}) {
        for (const bool last : {false, true}) {
          if (last && sizes.size() != 4) continue;
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " training " << training << last);
          expect_like_libtorch(type, kRoundings, [&](Inputs& draw) {
            at::Tensor x = draw(sizes);
            if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
            const at::Tensor mean = draw({sizes[1]});
            const at::Tensor variance = draw({sizes[1]}, 0.1, 1);
            Tensors all =
                with_gradients(draw, x, {sizes[1]}, [&](const auto& in, const auto& w, const auto& b) {
                  return torch::batch_norm(in, w, b, mean, variance, training, 0.1, 1e-5, false);
                });
            all.push_back(mean);
            all.push_back(variance);
            return all;
          });
        }
      }
    }
  }
}

// Small planes are summed at once, and large channels one by one; a plane of 70 x 70 has two blocks of terms.
TEST(BatchNorm, does_not_depend_on_the_layout) {
  torch::manual_seed(2);
  const SameKernels same;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {5, 37, 7, 9}, {33, 70, 4, 4}, {20, 19, 3, 3}, {6, 5, 40, 40}, {2, 3, 70, 70}, {1, 2, 70, 70}}) {
    const at::Tensor x = torch::randn(sizes);
    const at::Tensor g = torch::randn(sizes);
    const auto result = [&](at::MemoryFormat format) {
      return computed_everywhere([&] {
        const at::Tensor in = x.clone(format).requires_grad_();
        const at::Tensor w = torch::ones({sizes[1]}).requires_grad_();
        const at::Tensor out = torch::batch_norm(in, w, {}, {}, {}, true, 0.1, 1e-5, false);
        EXPECT_TRUE(out.is_contiguous(format));
        out.backward(g.contiguous(format));
        return flat({out, in.grad(), w.grad()});
      });
    };
    EXPECT_TRUE(same_bits(result(at::MemoryFormat::Contiguous), result(at::MemoryFormat::ChannelsLast)))
        << at::IntArrayRef(sizes);
  }
}

TEST(BatchNorm, without_weights_or_running_means_is_that_of_libtorch) {
  expect_like_libtorch(at::kFloat, kRoundings, [](Inputs& draw) -> Tensors {
    const at::Tensor x = draw({4, 5, 6, 7});
    const at::Tensor mean = draw({5});
    const at::Tensor variance = draw({5}).abs();
    const auto [now, spread] = torch::batch_norm_update_stats(x, mean, variance, 0.3);
    return {torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false),   now, spread, mean, variance,
            torch::instance_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false)};
  });
}

TEST(GroupNorm, is_that_of_libtorch) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{3, 12}, {2, 24, 5, 7}, {1, 6, 70, 70}}) {
      for (const int64_t groups : {1, 3, 6}) {
        for (const bool last : {false, true}) {
          if (last && sizes.size() != 4) continue;
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " groups " << groups);
          expect_like_libtorch(type, kRoundings, [&](Inputs& draw) {
            at::Tensor x = draw(sizes);
            if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
            return with_gradients(draw, x, {sizes[1]}, [&](const auto& in, const auto& w, const auto& b) {
              return torch::group_norm(in, groups, w, b, 1e-5);
            });
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tutti::kernels::normalisations_test
