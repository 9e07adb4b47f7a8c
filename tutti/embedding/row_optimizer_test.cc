#include "tutti/embedding/row_optimizer.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/test_ftrl.h"

namespace tutti::embedding::row_optimizer_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 7;
constexpr int64_t kDim = 5;

torch::Tensor start() {
  torch::manual_seed(3);
  return torch::randn({kRows, kDim});
}

struct Steps {
  std::vector<std::vector<int64_t>> rows;
  std::vector<torch::Tensor> gradients;  // (rows, dim)
};

Steps steps() {
  torch::manual_seed(4);
  Steps steps{{{0, 3}, {3, 6, 1}, {}, {5}, {0, 1, 2, 3, 4, 5, 6}, {3}}, {}};
  for (const auto& rows : steps.rows)
    steps.gradients.push_back(torch::randn({static_cast<int64_t>(rows.size()), kDim}));
  return steps;
}

// Runs the steps with our optimiser, which touches the rows of each step only.
torch::Tensor rows_after(const RowOptimizerOptions& options) {
  const torch::Tensor values = start();
  RowOptimizer optimizer("t", options, kRows, kDim);
  const Steps all = steps();
  for (size_t i = 0; i < all.rows.size(); ++i) {
    const torch::Tensor& gradients = all.gradients[i];
    optimizer.step(values, all.rows[i],
                   {static_cast<const float*>(gradients.data_ptr()), static_cast<size_t>(gradients.numel())},
                   learning_rate_of(options), static_cast<int64_t>(i) + 1);
  }
  return values;
}

// The same with LibTorch's optimiser of each row by itself, of which only the step number continues.
template <class Optimizer, class State, class Options>
torch::Tensor expected_after(const Options& options) {
  torch::Tensor values = start();
  std::vector<torch::Tensor> rows;
  for (int64_t row = 0; row < kRows; ++row) rows.push_back(values[row].clone().requires_grad_(true));
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (torch::Tensor& row : rows)
    optimizers.push_back(std::make_unique<Optimizer>(std::vector<torch::Tensor>{row}, options));
  const Steps all = steps();
  for (size_t i = 0; i < all.rows.size(); ++i) {
    for (size_t k = 0; k < all.rows[i].size(); ++k) {
      const auto row = static_cast<size_t>(all.rows[i][k]);
      rows[row].mutable_grad() = all.gradients[i][static_cast<int64_t>(k)].clone();
      for (auto& [key, state] : optimizers[row]->state()) {
        if constexpr (requires(State & own) { own.step(int64_t{}); })
          static_cast<State&>(*state).step(static_cast<int64_t>(i));
      }
      optimizers[row]->step();
    }
  }
  for (int64_t row = 0; row < kRows; ++row) values[row] = rows[static_cast<size_t>(row)].detach();
  return values;
}

void expect_near(const torch::Tensor& found, const torch::Tensor& expected) {
  EXPECT_LT((found - expected).abs().max().item<double>(), 2e-6) << found << expected;
}

TEST(RowOptimizer, updates_as_torch_optim_does_the_rows_that_are_touched) {
  using namespace torch::optim;
  for (const auto& options : {SGDOptions(0.1), SGDOptions(0.1).weight_decay(0.01),
                              SGDOptions(0.1).momentum(0.9), SGDOptions(0.1).momentum(0.9).nesterov(true)})
    expect_near(rows_after(options), expected_after<SGD, SGDParamState>(options));
  for (const auto& options :
       {AdagradOptions(0.1), AdagradOptions(0.1).weight_decay(0.1).initial_accumulator_value(0.5),
        AdagradOptions(0.1).lr_decay(0.1)})
    expect_near(rows_after(options), expected_after<Adagrad, AdagradParamState>(options));
  for (const auto& options : {RMSpropOptions(0.01), RMSpropOptions(0.01).alpha(0.9).weight_decay(0.1)})
    expect_near(rows_after(options), expected_after<RMSprop, RMSpropParamState>(options));
}

// By the formula in double precision: Adam's averages of a row change only when it is touched, and the
// corrections follow the number of all steps.
TEST(RowOptimizer, makes_lazy_steps_of_adam) {
  for (const bool decays_weights : {false, true}) {
    torch::Tensor values = start().to(torch::kDouble);
    torch::Tensor average = torch::zeros_like(values);
    torch::Tensor squares = torch::zeros_like(values);
    const Steps all = steps();
    constexpr double kRate = 0.05;
    constexpr double kDecay = 0.1;
    for (size_t i = 0; i < all.rows.size(); ++i) {
      const double step = static_cast<double>(i) + 1;
      for (size_t k = 0; k < all.rows[i].size(); ++k) {
        const int64_t row = all.rows[i][k];
        torch::Tensor gradient = all.gradients[i][static_cast<int64_t>(k)].to(torch::kDouble);
        if (decays_weights)
          values[row] *= 1 - kRate * kDecay;
        else
          gradient = gradient + kDecay * values[row];
        average[row] = 0.9 * average[row] + 0.1 * gradient;
        squares[row] = 0.999 * squares[row] + 0.001 * gradient * gradient;
        values[row] -= kRate * (average[row] / (1 - std::pow(0.9, step))) /
                       ((squares[row] / (1 - std::pow(0.999, step))).sqrt() + 1e-8);
      }
    }
    const torch::Tensor found = decays_weights
                                    ? rows_after(torch::optim::AdamWOptions(kRate).weight_decay(kDecay))
                                    : rows_after(torch::optim::AdamOptions(kRate).weight_decay(kDecay));
    expect_near(found.to(torch::kDouble), values);
  }
}

TEST(RowOptimizer, keeps_one_number_per_row_for_rowwise_adagrad) {
  torch::Tensor values = start().to(torch::kDouble);
  torch::Tensor sums = torch::zeros({kRows}, torch::kDouble);
  const Steps all = steps();
  for (size_t i = 0; i < all.rows.size(); ++i) {
    for (size_t k = 0; k < all.rows[i].size(); ++k) {
      const int64_t row = all.rows[i][k];
      const torch::Tensor gradient = all.gradients[i][static_cast<int64_t>(k)].to(torch::kDouble);
      sums[row] += gradient.square().mean();
      values[row] -= 0.1 * gradient / (sums[row].sqrt() + 1e-10);
    }
  }
  expect_near(rows_after(RowwiseAdagrad{.rate = 0.1}).to(torch::kDouble), values);
  EXPECT_EQ(RowOptimizer("t", RowwiseAdagrad{}, kRows, kDim).slots()[0].tensor.numel(), kRows);
}

TEST(RowOptimizer, makes_steps_of_ftrl_on_the_rows_that_are_touched) {
  for (const FtrlOptions& options :
       {FtrlOptions{.rate = 0.05}, FtrlOptions{.rate = 0.05, .l1 = 0.5, .l2 = 0.1, .beta = 1},
        FtrlOptions{
            .rate = 0.05, .rate_power = -0.4, .initial_accumulator_value = 0.5, .l2_shrinkage = 0.1}}) {
    const torch::Tensor values = start().to(torch::kDouble);
    std::vector<FtrlWeight> weights;
    for (int64_t i = 0; i < values.numel(); ++i)
      weights.emplace_back(options, values.flatten()[i].item<double>());
    const Steps all = steps();
    for (size_t i = 0; i < all.rows.size(); ++i) {
      for (size_t k = 0; k < all.rows[i].size(); ++k) {
        for (int64_t d = 0; d < kDim; ++d)
          weights[static_cast<size_t>(all.rows[i][k] * kDim + d)].step(
              options, options.rate, all.gradients[i][static_cast<int64_t>(k)][d].item<double>());
      }
    }
    torch::Tensor expected = torch::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i) expected.view({-1})[i] = weights[static_cast<size_t>(i)].w;
    const torch::Tensor found = rows_after(options);
    expect_near(found.to(torch::kDouble), expected);
    EXPECT_EQ(found.eq(0).any().item<bool>(), options.l1 > 0);
  }
  const RowOptimizer optimizer("t", FtrlOptions{}, kRows, kDim);
  EXPECT_EQ(optimizer.slots()[0].name, "accumulator");
  EXPECT_EQ(optimizer.slots()[1].name, "linear");
}

TEST(RowOptimizer, takes_an_optimiser_of_the_programs_own) {
  const ElementwiseOptimizer own = {.name = "own",
                                    .rate = 0.1,
                                    .weight_decay = 0.1,
                                    .slots = {"sum"},
                                    .update = [](const ElementwiseUpdate& u) {
                                      const torch::Tensor grads = u.grads + u.values * u.weight_decay;
                                      u.slots[0].add_(grads.square());
                                      u.values.sub_(u.rate * grads / (u.slots[0].sqrt() + 1e-10));
                                    }};
  const auto same = torch::optim::AdagradOptions(0.1).weight_decay(0.1);
  expect_near(rows_after(OptimizerOptions(own)), rows_after(same));
}

TEST(RowOptimizer, refuses_what_cannot_be_done_row_by_row) {
  const auto refused = [](const RowOptimizerOptions& options, const char* text) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { RowOptimizer("user", options, 3, 2); });
  };
  refused(torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1), "dampening");
  refused(torch::optim::AdamOptions(0.1).amsgrad(true), "'user' cannot be trained with AMSGrad");
  refused(torch::optim::RMSpropOptions(0.1).centered(true), "centred");
  refused(OptimizerOptions(ReplicatedOptimizer{.name = "whole"}), "'whole'");
}

}  // namespace
}  // namespace tutti::embedding::row_optimizer_test
