#include "tutti/step/rounding.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tutti::rounding_test {
namespace {

TEST(Rounding, loses_nothing_over_many_steps) {
  torch::manual_seed(1);
  const torch::Tensor gradient = torch::randn({500}) * 1e-3 + 1;  // bfloat16 would drop the small part
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    Rounding keeping({.type = type});
    Rounding forgetting({.type = type, .error_feedback = false});
    torch::Tensor kept = torch::zeros({500}, torch::kDouble);
    torch::Tensor forgot = torch::zeros({500}, torch::kDouble);
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      kept += keeping.round(gradient).to(torch::kDouble);
      forgot += forgetting.round(gradient).to(torch::kDouble);
    }
    const torch::Tensor exact = gradient.to(torch::kDouble) * kSteps;
    // The residual is less than one unit in the last place of the type.
    EXPECT_LT((kept - exact).abs().max().item<double>(), 0.02);
    EXPECT_GT((forgot - exact).abs().max().item<double>(), 0.05);
  }
}

TEST(Rounding, stays_in_range_and_forgets_what_is_no_number) {
  Rounding rounding({.type = torch::kHalf});
  const float nan = std::nanf("");
  const torch::Tensor odd = torch::tensor({1e6F, -1e6F, nan, 1.0F});
  const torch::Tensor rounded = rounding.round(odd).to(torch::kFloat);
  EXPECT_EQ(rounded[0].item<float>(), 65504);
  EXPECT_EQ(rounded[1].item<float>(), -65504);
  EXPECT_TRUE(std::isnan(rounded[2].item<float>()));
  EXPECT_EQ(rounding.round(torch::zeros({4}))[2].item<float>(), 0);
}

}  // namespace
}  // namespace tutti::rounding_test
