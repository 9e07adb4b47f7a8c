#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/torch_compat.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_references.h"
#include "tutti/kernels/test_targets.h"

#if TUTTI_TORCH_AT_LEAST(2, 4)
namespace tutti::kernels::attention_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Products of this module are chains of 256 terms, those of LibTorch are made of shorter ones.
constexpr double kRoundings = 32;
constexpr double kOfTheirs = 1.6;

struct Sizes {
  int64_t batch, heads, queries, keys, features;
};

const std::vector<Sizes> kSizes = {
    {1, 1, 1, 1, 1}, {2, 3, 17, 17, 8}, {1, 1, 300, 300, 8}, {2, 1, 5, 300, 4}, {1, 2, 270, 40, 5}};

TEST(Attention, is_that_of_libtorch_with_its_gradients) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const Sizes& of : kSizes) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message() << of.queries << "x" << of.keys << " causal " << causal);
        expect_like_libtorch(
            type, kRoundings,
            [&](Inputs& draw) -> Tensors {
              // Features of all heads lie together, as a linear layer makes them.
              const auto heads = [&](int64_t length) {
                return draw({of.batch, length, of.heads, of.features}).requires_grad_();
              };
              const at::Tensor q = heads(of.queries);
              const at::Tensor k = heads(of.keys);
              const at::Tensor v = heads(of.keys);
              const at::Tensor result = torch::scaled_dot_product_attention(
                  q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0, causal);
              result.backward(draw(result.sizes()));
              return {result, q.grad(), k.grad(), v.grad()};
            },
            kOfTheirs);
      }
    }
  }
}

TEST(Attention, takes_masks_as_libtorch_does) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    expect_like_libtorch(
        type, kRoundings,
        [](Inputs& draw) -> Tensors {
          const at::Tensor q = draw({2, 3, 20, 8}).requires_grad_();
          const at::Tensor k = draw({2, 3, 30, 8}).requires_grad_();
          const at::Tensor v = draw({2, 3, 30, 8}).requires_grad_();
          at::Tensor allowed = torch::arange(600).view({20, 30}) % 3 != 0;
          allowed[4] = false;
          const at::Tensor bias = draw({2, 1, 20, 30});
          const at::Tensor one = torch::scaled_dot_product_attention(q, k, v, allowed);
          const at::Tensor two = torch::scaled_dot_product_attention(q, k, v, bias, 0, false, 0.3);
          (one + two).backward(draw({2, 3, 20, 8}));
          return {one, two, q.grad(), k.grad(), v.grad()};
        },
        kOfTheirs);
  }
}

}  // namespace
}  // namespace tutti::kernels::attention_test
#endif
