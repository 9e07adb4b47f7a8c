// Optimisers of one's own: ElementwiseOptimizer and ReplicatedOptimizer.
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/step/buckets.h"

namespace tutti::own_optimizers_test {
namespace {

using testing::HasSubstr;

ElementwiseOptimizer lion(double rate, double beta1 = 0.9, double beta2 = 0.99) {
  return {.name = "lion",
          .rate = rate,
          .weight_decay = 0.1,
          .slots = {"exp_avg"},
          .numbers = {{"beta1", beta1}, {"beta2", beta2}},
          .update = [=](const ElementwiseUpdate& u) {
            const torch::Tensor& average = u.slots[0];
            const torch::Tensor direction = (average * beta1 + u.grads * (1 - beta1)).sign();
            u.values.mul_(1 - u.rate * u.weight_decay).sub_(direction * u.rate);
            average.mul_(beta2).add_(u.grads, 1 - beta2);
          }};
}

std::shared_ptr<torch::nn::Module> small_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(333, 17), torch::nn::Linear(17, 9)).ptr();
}

void fill(const Parameters& parameters, int step) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(200 + step);
  for (const auto& view : parameters.trained())
    torch::Tensor(view.grad).copy_(torch::randn(view.grad.sizes()));
}

// The formulas of the paper (Chen et al. 2023, algorithm 2) in double precision.
TEST(OwnOptimizers, lion_follows_its_formulas) {
  const torch::Tensor values = torch::tensor({1.0, -2.0, 0.5}, torch::kDouble);
  const torch::Tensor grads = torch::zeros({3}, torch::kDouble);
  Optimizer optimizer({{.values = values, .grads = grads}}, lion(0.01));
  std::array<double, 3> w = {1, -2, 0.5};
  std::array<double, 3> m = {};
  for (int step = 0; step < 20; ++step) {
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = std::sin(static_cast<double>(step) * 1.7 + static_cast<double>(i) + 0.5);
      grads[static_cast<int64_t>(i)] = g;
      const double c = 0.9 * m[i] + (1 - 0.9) * g;
      w[i] = w[i] * (1 - 0.01 * 0.1) - 0.01 * (c > 0 ? 1 : -1);
      m[i] = 0.99 * m[i] + (1 - 0.99) * g;
    }
    optimizer.step();
    for (size_t i = 0; i < w.size(); ++i)
      EXPECT_NEAR(values[static_cast<int64_t>(i)].item<double>(), w[i], 1e-12);
  }
}

TEST(OwnOptimizers, an_elementwise_one_has_the_same_bits_in_any_number_of_parts) {
  const std::vector<ParameterGroup> groups = {{.names = "*.bias", .weight_decay = 0},
                                              {.names = "1.*", .rate = 0.5}};
  std::string one;
  for (const int workers : {1, 2, 3}) {
    const auto net = small_net();
    const Parameters parameters(*net);
    std::vector<std::unique_ptr<Optimizer>> parts;
    for (int rank = 0; rank < workers; ++rank)
      parts.push_back(std::make_unique<Optimizer>(parameters, sections_of(parameters, rank, workers),
                                                  OptimizerOptions(lion(0.01), groups)));
    for (int step = 0; step < 5; ++step) {
      fill(parameters, step);
      for (const auto& part : parts) part->step();
    }
    if (workers == 1) one = parameters.sha256();
    EXPECT_EQ(parameters.sha256(), one) << workers;
  }
}

TEST(OwnOptimizers, an_elementwise_one_continues_from_its_slots_and_steps) {
  ElementwiseOptimizer with_steps{.name = "counts", .rate = 0.1, .update = [](const ElementwiseUpdate& u) {
                                    u.values.sub_(u.grads * (u.rate / static_cast<double>(u.step)));
                                  }};
  for (const ElementwiseOptimizer& own : {lion(0.01), with_steps}) {
    const auto net = small_net();
    Parameters parameters(*net);
    Optimizer first(parameters, parameters.blocks(), own);
    for (int step = 0; step < 3; ++step) {
      fill(parameters, step);
      first.step();
    }
    const Optimizer::State state = first.state();
    EXPECT_EQ(state.slots.size(), own.slots.size());
    const auto copy = small_net();
    Parameters resumed(*copy);
    resumed.values().copy_(parameters.values());
    Optimizer second(resumed, resumed.blocks(), own);
    second.restore(state);
    for (int step = 3; step < 5; ++step) {
      fill(parameters, step);
      fill(resumed, step);
      first.step();
      second.step();
    }
    EXPECT_EQ(resumed.sha256(), parameters.sha256()) << own.name;
  }
}

TEST(OwnOptimizers, one_that_is_not_elementwise_is_refused) {
  ElementwiseOptimizer normed{.name = "normed", .rate = 1, .update = [](const ElementwiseUpdate& u) {
                                u.values.sub_(u.grads / u.grads.norm() * u.rate);
                              }};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the optimiser normed does not work element by element"),
               [&] { require_in_range(normed); });
  ElementwiseOptimizer greedy{.name = "greedy", .rate = 0.5, .update = [](const ElementwiseUpdate& u) {
                                u.values.sub_(torch::Tensor(u.grads).mul_(u.rate));
                              }};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the optimiser greedy changes the gradients"),
               [&] { require_in_range(greedy); });
  ElementwiseOptimizer clamping{.name = "clamping", .rate = 0.5, .update = [](const ElementwiseUpdate& u) {
                                  u.values.sub_(torch::Tensor(u.grads).clamp_(-1, 1) * u.rate);
                                }};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the optimiser clamping changes the gradients"),
               [&] { require_in_range(clamping); });
}

TEST(OwnOptimizers, bad_names_and_numbers_are_refused) {
  const auto refuse = [](const char* text, auto change) {
    ElementwiseOptimizer own = lion(0.1);
    change(own);
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { require_in_range(own); });
  };
  refuse("'adam' is an optimiser of torch::optim", [](auto& own) { own.name = "adam"; });
  refuse("cannot be the name of an optimiser", [](auto& own) { own.name = ""; });
  refuse("cannot be the name of a slot", [](auto& own) { own.slots = {"a/b"}; });
  refuse("two slots of the name 'a'", [](auto& own) { own.slots = {"a", "a"}; });
  refuse("the learning rate is -1", [](auto& own) { own.rate = -1; });
  refuse("beta1 is nan", [](auto& own) { own.numbers["beta1"] = std::numeric_limits<double>::quiet_NaN(); });
  refuse("'lr' cannot be the name", [](auto& own) { own.numbers["lr"] = 1; });
  refuse("has no function `update`", [](auto& own) { own.update = nullptr; });
}

TEST(OwnOptimizers, a_server_takes_the_rate_from_the_chief_and_needs_the_same_numbers) {
  const Json json = to_json(lion(0.5));
  EXPECT_EQ(json.at("beta2"), 0.99);
  const std::vector<ElementwiseOptimizer> known = {lion(0.1)};
  const OptimizerOptions taken = optimizer_from_json(json, known);
  EXPECT_EQ(std::get<ElementwiseOptimizer>(taken.kind).rate, 0.5);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("Program::optimizers"),
               [&] { optimizer_from_json(json); });
  const std::vector<ElementwiseOptimizer> other = {lion(0.1, 0.8)};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("beta1 0.8 here, but 0.9 in the task that trains"),
               [&] { optimizer_from_json(json, other); });
}

ReplicatedOptimizer two_groups() {
  return {.name = "two_groups", .make = [](const std::vector<torch::Tensor>& parameters) {
            std::vector<torch::optim::OptimizerParamGroup> groups(2, std::vector<torch::Tensor>());
            for (const torch::Tensor& parameter : parameters)
              groups[parameter.dim() == 1 ? 1 : 0].params().push_back(parameter);
            auto adam = std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.02));
            adam->param_groups()[1].options().set_lr(0.01);
            return adam;
          }};
}

TEST(OwnOptimizers, a_replicated_one_does_what_its_optimiser_does_also_after_a_restore) {
  const auto net = small_net();
  const auto expected = small_net();
  Parameters parameters(*net);
  auto optimizer = std::make_unique<Optimizer>(parameters, parameters.blocks(), two_groups());
  EXPECT_EQ(optimizer->learning_rate(), 0.02);
  const auto plain = two_groups().make(expected->parameters());
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      const Optimizer::State sent = optimizer->state();
      EXPECT_TRUE(sent.slots.empty());
      Optimizer::State received = state_of(store::empty_snapshot(store::outline_of(snapshot_of(sent))));
      received.archive.copy_(sent.archive);
      optimizer = std::make_unique<Optimizer>(parameters, parameters.blocks(), two_groups());
      optimizer->restore(received);
      optimizer->set_learning_rate(0.04);
      plain->param_groups()[0].options().set_lr(0.04);
      plain->param_groups()[1].options().set_lr(0.02);
    }
    fill(parameters, step);
    for (size_t i = 0; i < parameters.trained().size(); ++i)
      expected->parameters()[i].mutable_grad() = parameters.trained()[i].grad.clone();
    optimizer->step();
    plain->step();
    for (size_t i = 0; i < parameters.trained().size(); ++i)
      ASSERT_TRUE(expected->parameters()[i].equal(parameters.trained()[i].tensor)) << step;
  }
  EXPECT_EQ(optimizer->steps(), 6);
}

TEST(OwnOptimizers, a_restore_keeps_the_options_of_the_program) {
  const auto net = small_net();
  Parameters parameters(*net);
  Optimizer before(parameters, parameters.blocks(), two_groups());
  fill(parameters, 0);
  before.step();
  Optimizer after(parameters, parameters.blocks(), two_groups());
  after.set_learning_rate(0.5);
  after.restore(before.state());
  EXPECT_EQ(after.learning_rate(), 0.5);
  after.restore({});
  EXPECT_EQ(after.learning_rate(), 0.5);
  EXPECT_EQ(after.steps(), 0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no saved state of the optimiser two_groups"),
               [&] { after.restore({.steps = 3, .slots = {}}); });
}

// Does not say how it is saved.
class Forgetful final : public torch::optim::Optimizer {
 public:
  explicit Forgetful(std::vector<torch::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure = nullptr) override { return {}; }
};

TEST(OwnOptimizers, a_replicated_one_that_cannot_be_used_is_an_error_that_says_why) {
  const auto net = small_net();
  Parameters parameters(*net);
  const auto make = [&](auto with) {
    return std::make_unique<Optimizer>(
        parameters, parameters.blocks(),
        ReplicatedOptimizer{.name = "mine", .make = [with](const std::vector<torch::Tensor>& all) {
                              return std::unique_ptr<torch::optim::Optimizer>(with(all));
                            }});
  };
  const auto forgetful = make([](const auto& all) { return std::make_unique<Forgetful>(all); });
  forgetful->step();
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the optimiser mine saves nothing"),
               [&] { forgetful->state(); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("Model::fit"),
               [&] { make([](const auto& all) { return std::make_unique<torch::optim::LBFGS>(all); }); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has made no optimiser"),
               [&] { make([](const auto&) { return std::unique_ptr<Forgetful>(); }); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("groups can only freeze"), [&] {
    Optimizer(parameters, parameters.blocks(), {two_groups(), {{.names = "*.bias", .rate = 0.5}}});
  });
}

}  // namespace
}  // namespace tutti::own_optimizers_test
