#include "tutti/nn/losses.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"

namespace tutti::nn::losses_test {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Losses, are_those_of_libtorch_where_nothing_is_missing) {
  torch::manual_seed(1);
  const torch::Tensor logits = torch::randn({6, 3});
  const torch::Tensor targets = torch::rand({6, 3});
  const auto bce = [&](torch::Reduction::Reduction reduction) {
    return torch::binary_cross_entropy_with_logits(logits, targets, {}, {}, reduction);
  };
  EXPECT_TRUE(torch::allclose(xent_uniform_sum(targets, logits), bce(at::Reduction::Sum)));
  EXPECT_TRUE(torch::allclose(xent_uniform_mean(targets, logits), bce(at::Reduction::Mean)));
  EXPECT_TRUE(torch::allclose(mse(targets, logits), torch::mse_loss(logits, targets)));
  EXPECT_FLOAT_EQ(l2_penalty(torch::full({4}, 3.F), 0.5).item<float>(), 9);
}

TEST(Losses, leave_out_what_is_missing_and_its_gradient) {
  const torch::Tensor targets = torch::tensor({1.F, kNan, 0.F, kNan}).reshape({4, 1});
  const torch::Tensor present = torch::tensor({1.F, 0.F}).reshape({2, 1});
  for (const auto loss : {xent_uniform_sum, xent_uniform_mean, mse}) {
    // The outputs for missing targets may be anything, even NaN.
    torch::Tensor all = torch::tensor({0.5F, 7.F, -2.F, kNan}).reshape({4, 1}).requires_grad_();
    torch::Tensor some = torch::tensor({0.5F, -2.F}).reshape({2, 1}).requires_grad_();
    const torch::Tensor of_all = loss(targets, all);
    const torch::Tensor of_some = loss(present, some);
    EXPECT_TRUE(torch::equal(of_all, of_some));
    of_all.backward();
    of_some.backward();
    EXPECT_TRUE(torch::equal(all.grad().index_select(0, torch::tensor({0, 2})), some.grad()));
    EXPECT_EQ(all.grad()[1].item<float>(), 0);
    EXPECT_EQ(all.grad()[3].item<float>(), 0);
  }
}

TEST(Losses, of_nothing_at_all_are_zero) {
  for (const auto loss : {xent_uniform_sum, xent_uniform_mean, mse}) {
    torch::Tensor output = torch::ones({3, 1}).requires_grad_();
    const torch::Tensor value = loss(torch::full({3, 1}, kNan), output);
    EXPECT_EQ(value.item<float>(), 0);
    value.backward();
    EXPECT_TRUE(torch::equal(output.grad(), torch::zeros({3, 1})));
  }
}

TEST(Losses, of_outputs_in_half_precision_are_made_in_float32) {
  const torch::Tensor targets = torch::tensor({1013.2F, -7.125F}).reshape({2, 1});
  const torch::Tensor outputs = torch::tensor({1008.F, -7.F}).reshape({2, 1});
  EXPECT_EQ(mse(targets, outputs.to(torch::kBFloat16)).scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(mse(targets, outputs.to(torch::kBFloat16)), mse(targets, outputs)));
}

TEST(Losses, take_a_column_for_a_vector_and_say_what_does_not_go_together) {
  EXPECT_EQ(mse(torch::ones({3}), torch::zeros({3, 1})).item<float>(), 1);
  EXPECT_EQ(mse(torch::ones({3, 1}, torch::kLong), torch::zeros({3})).item<float>(), 1);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("xent_uniform_sum: targets of shape [3, 2]"), [] {
    xent_uniform_sum(torch::ones({3, 2}), torch::zeros({3, 1}));
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("do not match"), [] {
    mse(torch::ones({1, 3}), torch::zeros({3, 1}));
  });
}

}  // namespace
}  // namespace tutti::nn::losses_test
