#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_references.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::softmax_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Roundings of results whose largest elements are near 1, and of sums of few of them.
constexpr double kRoundings = 8;

TEST(Softmax, is_that_of_libtorch_over_any_dimension_in_any_layout) {
  for (const at::ScalarType type : kReducedTypes) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {1, 1, 1}, {2, 3, 10}, {5, 16, 17}, {1, 33, 8}, {2, 0, 3}, {1, 9000, 2}, {1, 9000, 9}}) {
      for (int64_t dim = -1; dim < 2; ++dim) {
        for (const bool lies_apart : {false, true}) {
          if (lies_apart && type != at::kFloat) continue;
          SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " dimension " << dim);
          expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
            at::Tensor x = draw(sizes, 3);
            at::Tensor g = draw(sizes);
            if (lies_apart) x = x.transpose(0, 2).contiguous().transpose(0, 2);
            x.requires_grad_();
            const at::Tensor soft = torch::softmax(x, dim);
            const at::Tensor logarithm = torch::log_softmax(x, dim);
            return {soft, torch::autograd::grad({soft}, {x}, {g})[0], logarithm,
                    torch::autograd::grad({logarithm}, {x}, {g})[0]};
          });
        }
      }
    }
  }
}

TEST(Softmax, of_infinities_nan_and_large_numbers_is_that_of_libtorch) {
  for (const at::ScalarType type : kReducedTypes) {
    expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
      at::Tensor x = draw({8, 19});
      x[0][3] = -INFINITY;
      x[1] = -INFINITY;
      x[2][18] = INFINITY;
      x[3][5] = NAN;
      x[4] = draw({19}, 1, 10000);
      x[5][0] = -2048;
      x[6] = draw({19}, 100);
      return {torch::softmax(x, 1), torch::log_softmax(x, 1), torch::softmax(x[0][0], 0),
              torch::log_softmax(x[0], -1), torch::logsumexp(x, 1)};
    });
  }
}

TEST(Softmax, does_not_depend_on_the_layout) {
  torch::manual_seed(1);
  const SameKernels same;
  const at::Tensor x = torch::randn({3, 40, 5, 7});
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_TRUE(same_bits(torch::softmax(x, 1), torch::softmax(last, 1)));
  EXPECT_TRUE(
      same_bits(torch::softmax(x, 1), torch::softmax(x.permute({0, 2, 3, 1}), 3).permute({0, 3, 1, 2})));
}

TEST(CrossEntropy, is_that_of_libtorch_with_weights_and_ignored_targets) {
  namespace F = torch::nn::functional;
  for (const at::ScalarType type : kReducedTypes) {
    for (const bool weighted : {false, true}) {
      for (const int reduction : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << "weighted " << weighted << ", reduction " << reduction);
        expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
          F::CrossEntropyFuncOptions options;
          if (weighted) options.weight(draw({7}).abs());
          options.ignore_index(2);
          if (reduction == 0) options.reduction(torch::kNone);
          if (reduction == 1) options.reduction(torch::kMean);
          if (reduction == 2) options.reduction(torch::kSum);
          const at::Tensor rows = draw({50, 7}).requires_grad_();
          const at::Tensor images = draw({3, 7, 4, 5}).requires_grad_();
          const at::Tensor labels = torch::arange(110) * 5 % 7;
          const at::Tensor one = F::cross_entropy(rows, labels.narrow(0, 0, 50), options);
          const at::Tensor two = F::cross_entropy(images, labels.narrow(0, 50, 60).view({3, 4, 5}), options);
          Tensors result = {one, two, F::cross_entropy(rows[0], labels[1], options)};
          (one.sum() + two.sum()).backward();
          result.push_back(rows.grad());
          result.push_back(images.grad());
          return result;
        });
      }
    }
  }
}

TEST(CrossEntropy, of_wrong_targets_is_refused_by_libtorch) {
  const SameKernels same;
  const at::Tensor x = torch::randn({2, 3}).log_softmax(1);
  EXPECT_THROW(torch::nll_loss(x, torch::tensor({0, 3})), c10::Error);
  EXPECT_THROW(torch::nll_loss(x, torch::tensor({0, 1, 2})), c10::Error);
  EXPECT_TRUE(torch::nll_loss(torch::empty({0, 3}), torch::empty({0}, at::kLong)).isnan().item<bool>());
}

}  // namespace
}  // namespace tutti::kernels::softmax_test
