#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/kernels/same_kernels.h"
#include "tutti/kernels/test_references.h"
#include "tutti/kernels/test_targets.h"

namespace tutti::kernels::composed_operators_test {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kRoundings = 8;

TEST(KlDiv, is_that_of_libtorch) {
  for (const at::ScalarType type : kReducedTypes) {
    for (const bool log_target : {false, true}) {
      for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
        SCOPED_TRACE(testing::Message() << "log_target " << log_target << ", reduction " << reduction);
        expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
          const at::Tensor input = draw({9, 17}).requires_grad_();
          const at::Tensor drawn = draw({9, 17});
          const at::Tensor target = (log_target ? drawn : drawn.abs()).requires_grad_();
          const at::Tensor loss = at::kl_div(input, target, reduction, log_target);
          loss.backward(torch::ones_like(loss));
          return {loss, input.grad(), target.grad()};
        });
      }
    }
  }
}

TEST(PoissonNllLoss, is_that_of_libtorch) {
  for (const at::ScalarType type : kReducedTypes) {
    for (const bool log_input : {false, true}) {
      for (const bool full : {false, true}) {
        SCOPED_TRACE(testing::Message() << "log_input " << log_input << ", full " << full);
        expect_like_libtorch(type, kRoundings, [&](Inputs& draw) -> Tensors {
          const at::Tensor drawn = draw({9, 17});
          const at::Tensor input = (log_input ? drawn : drawn.abs()).requires_grad_();
          const at::Tensor target = draw({9, 17}, 3).abs().requires_grad_();
          const at::Tensor loss =
              at::poisson_nll_loss(input, target, log_input, full, 1e-3, at::Reduction::Mean);
          loss.backward();
          return {loss, input.grad(), target.grad()};
        });
      }
    }
  }
}

// The gradients of xlogy by both operands are added first, and then the gradient of the product.
TEST(KlDiv, adds_the_parts_of_its_gradient_in_a_fixed_order) {
  torch::manual_seed(7);
  const SameKernels same;
  const at::Tensor input = torch::randn({1000});
  const at::Tensor target = torch::rand({1000}).requires_grad_();
  const at::Tensor gradient = torch::randn({1000});
  at::kl_div(input, target, at::Reduction::None).backward(gradient);
  const at::Tensor t = target.detach();
  const at::Tensor parts = at::xlogy(gradient, t).add(gradient.mul(t).div(t));
  EXPECT_TRUE(same_bits(target.grad(), parts.add(gradient.neg().mul(input))));
}

// A third part, of another use of the target, comes first and is added to each of the two.
TEST(KlDiv, of_logarithms_has_its_parts_in_a_fixed_order) {
  torch::manual_seed(7);
  const SameKernels same;
  const at::Tensor input = torch::randn({1000});
  const at::Tensor target = torch::randn({1000}).requires_grad_();
  const at::Tensor gradient = torch::randn({1000});
  const at::Tensor factor = torch::randn({1000});
  const at::Tensor loss = at::kl_div(input, target, at::Reduction::None, /*log_target=*/true);
  loss.add(target.mul(factor)).backward(gradient);
  const at::Tensor t = target.detach();
  const at::Tensor of_weight = gradient.mul(t.sub(input)).mul(t.exp());
  const at::Tensor of_difference = gradient.mul(t.exp());
  EXPECT_TRUE(same_bits(target.grad(), gradient.mul(factor).add(of_weight).add(of_difference)));
}

TEST(PoissonNllLoss, adds_the_parts_of_its_gradient_in_a_fixed_order) {
  torch::manual_seed(7);
  const SameKernels same;
  const at::Tensor input = torch::randn({1000}).requires_grad_();
  const at::Tensor target = torch::rand({1000});
  const at::Tensor gradient = torch::randn({1000});
  const at::Tensor factor = torch::randn({1000});
  const at::Tensor loss = at::poisson_nll_loss(input, target, /*log_input=*/true, /*full=*/false, 0, 0);
  loss.add(input.mul(factor)).backward(gradient);
  const at::Tensor of_rate = gradient.mul(input.detach().exp());
  const at::Tensor of_product = gradient.neg().mul(target);
  EXPECT_TRUE(same_bits(input.grad(), gradient.mul(factor).add(of_rate).add(of_product)));
}

TEST(KlDiv, of_whole_numbers_is_refused_by_libtorch) {
  const SameKernels same;
  EXPECT_THROW(at::kl_div(torch::ones({3}), torch::ones({3}, at::kLong)), c10::Error);
}

}  // namespace
}  // namespace tutti::kernels::composed_operators_test
