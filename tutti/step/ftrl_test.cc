#include "tutti/params/ftrl.h"

#include <cmath>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/test_ftrl.h"
#include "tutti/step/buckets.h"

namespace tutti::ftrl_test {
namespace {

using testing::HasSubstr;

// Each option once, and all together.
std::vector<FtrlOptions> all_ftrl_options() {
  return {{.rate = 0.05},
          {.rate = 0.05, .rate_power = -0.4},
          {.rate = 0.05, .rate_power = 0},
          {.rate = 0.05, .initial_accumulator_value = 0},
          {.rate = 0.05, .l1 = 0.7},
          {.rate = 0.05, .l2 = 0.3},
          {.rate = 0.05, .l2_shrinkage = 0.2},
          {.rate = 0.05, .beta = 1},
          {.rate = 0.05,
           .rate_power = -0.6,
           .initial_accumulator_value = 0.5,
           .l1 = 0.3,
           .l2 = 0.1,
           .l2_shrinkage = 0.05,
           .beta = 0.5}};
}

double ftrl_gradient(int step, size_t i) {
  return std::sin(static_cast<double>(step) * 1.7 + static_cast<double>(i));
}

constexpr size_t kFtrlWeights = 5;

// Makes steps under a falling rate, and compares each of them with the formula.
void expect_ftrl_formula(const FtrlOptions& options, torch::ScalarType type, double tolerance) {
  const torch::Tensor values = torch::linspace(-1, 1, kFtrlWeights, type);
  const torch::Tensor grads = torch::zeros({kFtrlWeights}, type);
  std::vector<FtrlWeight> expected;
  for (size_t i = 0; i < kFtrlWeights; ++i)
    expected.emplace_back(options, values[static_cast<int64_t>(i)].item<double>());
  Optimizer optimizer({{.values = values, .grads = grads}}, options);
  for (int step = 0; step < 20; ++step) {
    const double rate = options.rate / (1 + 0.1 * step);
    for (size_t i = 0; i < kFtrlWeights; ++i) {
      grads[static_cast<int64_t>(i)] = ftrl_gradient(step, i);
      expected[i].step(options, rate, grads[static_cast<int64_t>(i)].item<double>());
    }
    optimizer.set_learning_rate(rate);
    optimizer.step();
    for (size_t i = 0; i < kFtrlWeights; ++i)
      ASSERT_NEAR(values[static_cast<int64_t>(i)].item<double>(), expected[i].w, tolerance)
          << to_json(OptimizerOptions(options)) << " at step " << step;
  }
}

TEST(Ftrl, follows_the_formulas_of_tensorflow) {
  for (const FtrlOptions& options : all_ftrl_options()) {
    expect_ftrl_formula(options, torch::kDouble, 1e-12);
    expect_ftrl_formula(options, torch::kFloat32, 2e-6);
  }
}

// Without penalties it is gradient descent with the rates of Adagrad (McMahan et al. 2013, section 3.1), if
// the weights begin with 0.
TEST(Ftrl, without_penalties_is_adagrad) {
  const torch::Tensor values = torch::zeros({kFtrlWeights}, torch::kDouble);
  const torch::Tensor grads = torch::zeros({kFtrlWeights}, torch::kDouble);
  Optimizer ftrl({{.values = values, .grads = grads}},
                 FtrlOptions{.rate = 0.05, .initial_accumulator_value = 0.1});
  torch::Tensor other = torch::zeros({kFtrlWeights}, torch::kDouble).requires_grad_(true);
  torch::optim::Adagrad adagrad({other},
                                torch::optim::AdagradOptions(0.05).initial_accumulator_value(0.1).eps(0));
  for (int step = 0; step < 20; ++step) {
    for (size_t i = 0; i < kFtrlWeights; ++i) grads[static_cast<int64_t>(i)] = ftrl_gradient(step, i);
    other.mutable_grad() = grads.clone();
    ftrl.step();
    adagrad.step();
    EXPECT_LT((values - other).abs().max().item<double>(), 1e-12) << step;
  }
}

TEST(Ftrl, a_gradient_that_is_no_number_leaves_no_number) {
  const torch::Tensor values = torch::ones({2});
  Optimizer optimizer({{.values = values, .grads = torch::tensor({1.0F, std::nanf("")})}},
                      FtrlOptions{.rate = 0.1, .l1 = 0.1});
  optimizer.step();
  EXPECT_TRUE(std::isfinite(values[0].item<float>()));
  EXPECT_TRUE(std::isnan(values[1].item<float>()));
}

TEST(Ftrl, makes_weights_exactly_zero_whose_gradients_say_little) {
  const torch::Tensor values = torch::zeros({2});
  const torch::Tensor grads = torch::zeros({2});
  Optimizer optimizer({{.values = values, .grads = grads}}, FtrlOptions{.rate = 0.1, .l1 = 2});
  for (int step = 0; step < 10; ++step) {
    grads[0] = step % 2 == 0 ? 1 : -1;
    grads[1] = 1;
    optimizer.step();
  }
  EXPECT_EQ(values[0].item<float>(), 0);
  EXPECT_LT(values[1].item<float>(), -0.1);
}

// As in a warm-up that begins with 0.
// The shrinkage alone moves the sum z, by which nothing divides before the first gradient.
TEST(Ftrl, a_weight_without_a_gradient_is_never_infinite) {
  const torch::Tensor values = torch::tensor({2.0F, -2.0F});
  const torch::Tensor grads = torch::tensor({0.0F, 0.5F});
  const FtrlOptions options{.rate = 0.1, .initial_accumulator_value = 0, .l2_shrinkage = 0.1};
  FtrlWeight expected(options, -2);
  Optimizer optimizer({{.values = values, .grads = grads}}, options);
  for (int step = 0; step < 3; ++step) {
    optimizer.step();
    expected.step(options, options.rate, 0.5);
    EXPECT_EQ(values[0].item<float>(), 2);
    EXPECT_NEAR(values[1].item<float>(), expected.w, 1e-6);
  }
}

TEST(Ftrl, a_step_with_a_rate_of_zero_changes_nothing) {
  const torch::Tensor values = torch::ones({3});
  Optimizer optimizer({{.values = values, .grads = torch::ones({3})}}, FtrlOptions{.rate = 0.1, .l1 = 0.1});
  optimizer.set_learning_rate(0);
  optimizer.step();
  EXPECT_TRUE(values.equal(torch::ones({3})));
  for (const Optimizer::Slot& slot : optimizer.state().slots)
    EXPECT_TRUE(slot.vector.allclose(torch::full({3}, slot.name == "linear" ? 0 : 0.1))) << slot.name;
}

std::shared_ptr<torch::nn::Module> ftrl_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(333, 17), torch::nn::Linear(17, 9)).ptr();
}

void fill_for_ftrl(const Parameters& parameters, int step) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(200 + step);
  for (const auto& view : parameters.trained())
    torch::Tensor(view.grad).copy_(torch::randn(view.grad.sizes()));
}

TEST(Ftrl, has_the_same_bits_in_any_number_of_parts_and_after_a_restore) {
  for (const FtrlOptions& options : all_ftrl_options()) {
    std::string one;
    for (const int workers : {1, 3}) {
      const auto module = ftrl_net();
      const Parameters parameters(*module);
      std::vector<std::unique_ptr<Optimizer>> parts;
      const auto make = [&](int rank) {
        return std::make_unique<Optimizer>(parameters, sections_of(parameters, rank, workers),
                                           OptimizerOptions(options, {{.names = "*.bias", .weight_decay = 0},
                                                                      {.names = "1.*", .rate = 0.5}}));
      };
      for (int rank = 0; rank < workers; ++rank) parts.push_back(make(rank));
      for (int step = 0; step < 5; ++step) {
        fill_for_ftrl(parameters, step);
        for (int rank = 0; rank < workers; ++rank) {
          auto& part = parts[static_cast<size_t>(rank)];
          part->step();
          if (step != 2 || workers == 1) continue;
          const Optimizer::State state = part->state();
          part = make(rank);
          part->restore(state);
        }
      }
      if (workers == 1) one = parameters.sha256();
      EXPECT_EQ(parameters.sha256(), one) << to_json(OptimizerOptions(options));
    }
  }
}

TEST(Ftrl, the_weight_decay_of_a_group_takes_the_place_of_the_shrinkage) {
  const auto trained = [](const OptimizerOptions& options) {
    const auto module = ftrl_net();
    const Parameters parameters(*module);
    Optimizer optimizer(parameters, parameters.blocks(), options);
    for (int step = 0; step < 3; ++step) {
      fill_for_ftrl(parameters, step);
      optimizer.step();
    }
    return parameters.sha256();
  };
  const FtrlOptions shrinking{.rate = 0.1, .l2_shrinkage = 0.2};
  const FtrlOptions plain{.rate = 0.1};
  EXPECT_EQ(trained({plain, {{.names = "*", .weight_decay = 0.4}}}), trained(shrinking));
  EXPECT_EQ(trained({shrinking, {{.names = "*", .weight_decay = 0}}}), trained(plain));
  EXPECT_NE(trained(shrinking), trained(plain));
}

TEST(Ftrl, is_known_to_every_server) {
  const OptimizerOptions options(all_ftrl_options().back(), {{.names = "*.bias", .rate = 0.5}});
  const Json json = to_json(options);
  EXPECT_EQ(json.at("name"), "ftrl");
  EXPECT_EQ(json.at("initial_accumulator_value"), 0.5);
  EXPECT_EQ(to_json(optimizer_from_json(json)), json);
}

TEST(Ftrl, options_out_of_range_are_refused) {
  const auto refuse = [](const FtrlOptions& options, const char* text) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { require_in_range(options); });
  };
  refuse({.rate = -1}, "the optimiser ftrl: the learning rate is -1");
  refuse({.rate_power = 0.5}, "lr_power is 0.5, expected a number of at most 0");
  refuse({.rate_power = -std::numeric_limits<double>::infinity()}, "lr_power is -inf");
  refuse({.initial_accumulator_value = -0.1}, "initial_accumulator_value is -0.1");
  refuse({.l1 = -1}, "l1 is -1");
  refuse({.l2 = std::numeric_limits<double>::quiet_NaN()}, "l2 is nan");
  refuse({.l2_shrinkage = -1}, "l2_shrinkage is -1");
  refuse({.beta = -1}, "beta is -1");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'ftrl' is an optimiser of torch::optim or of Tutti"),
               [] { require_in_range(ElementwiseOptimizer{.name = "ftrl"}); });
}

}  // namespace
}  // namespace tutti::ftrl_test
