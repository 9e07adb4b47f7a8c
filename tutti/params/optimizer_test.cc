#include "tutti/params/optimizer.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"

namespace tutti::optimizer_test {
namespace {

struct Case {
  const char* name;
  OptimizerOptions options;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> plain;
};

template <class Plain, class Options>
Case make_case(const char* name, const Options& options) {
  return {name, options, [options](std::vector<torch::Tensor> parameters) {
            return std::make_unique<Plain>(std::move(parameters), options);
          }};
}

std::vector<Case> cases() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): a table of its classes
  return {
      make_case<SGD>("sgd", SGDOptions(0.1)),
      make_case<SGD>("momentum", SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(1e-3)),
      make_case<SGD>("nesterov", SGDOptions(0.1).momentum(0.9).nesterov(true)),
      make_case<Adam>("adam", AdamOptions(1e-2).weight_decay(1e-3)),
      make_case<Adam>("amsgrad", AdamOptions(1e-2).amsgrad(true)),
      make_case<AdamW>("adamw", AdamWOptions(1e-2)),
      make_case<Adagrad>("adagrad", AdagradOptions(0.1).lr_decay(0.01)),
      make_case<RMSprop>("rmsprop", RMSpropOptions(1e-2).momentum(0.5).centered(true)),
  };
}

class OptimizerTest : public testing::TestWithParam<Case> {};

torch::Tensor gradient(int64_t elements, int step) {
  torch::manual_seed(100 + step);
  return torch::randn({elements});
}

// The cuts are at odd offsets, so chunks end in the middle of vector registers.
TEST_P(OptimizerTest, gives_the_bits_of_torch_optim_on_the_whole_vector) {
  const int64_t elements = 3 * Optimizer::kChunkElements + 12347;
  torch::manual_seed(1);
  const torch::Tensor start = torch::randn({elements});

  torch::Tensor whole = start.clone().requires_grad_(true);
  whole.mutable_grad() = torch::zeros({elements});
  const auto plain = GetParam().plain({whole});

  const torch::Tensor values = start.clone();
  const torch::Tensor grads = torch::zeros({elements});
  const auto cut = [](const torch::Tensor& vector) {
    return std::vector<torch::Tensor>{vector.narrow(0, 0, 77777), vector.narrow(0, 77777, elements - 77777)};
  };
  Optimizer sliced({{cut(values)[0], cut(grads)[0]}, {cut(values)[1], cut(grads)[1]}}, GetParam().options);

  for (int step = 0; step < 6; ++step) {
    const torch::Tensor g = gradient(elements, step);
    whole.mutable_grad().copy_(g);
    plain->step();
    if (step % 3 == 1) {
      sliced.step(cut(g));  // instead of its own gradients
    } else {
      grads.copy_(g);
      sliced.step();
    }
    ASSERT_TRUE(values.equal(whole.detach())) << GetParam().name << " at step " << step;
  }
}

TEST_P(OptimizerTest, continues_from_its_slots_as_if_it_had_never_stopped) {
  const int64_t elements = Optimizer::kChunkElements + 777;
  torch::Tensor values = torch::ones({elements});
  const torch::Tensor grads = torch::zeros({elements});
  Optimizer first({{values, grads}}, GetParam().options);
  for (int step = 0; step < 3; ++step) {
    grads.copy_(gradient(elements, step));
    first.step();
  }
  const auto state = first.state();
  const torch::Tensor resumed = values.clone();
  Optimizer second({{resumed, grads}}, GetParam().options);
  second.restore(state);
  for (int step = 3; step < 6; ++step) {
    grads.copy_(gradient(elements, step));
    first.step();
    second.step();
  }
  EXPECT_TRUE(values.equal(resumed)) << GetParam().name;
  EXPECT_EQ(second.steps(), 6);
}

TEST_P(OptimizerTest, forgets_what_it_has_learnt_where_it_is_restored_to_the_beginning) {
  constexpr int64_t kElements = 100;
  const torch::Tensor used_values = torch::ones({kElements});
  const torch::Tensor fresh_values = torch::ones({kElements});
  const torch::Tensor grads = torch::zeros({kElements});
  Optimizer used({{used_values, grads}}, GetParam().options);
  Optimizer fresh({{fresh_values, grads}}, GetParam().options);
  grads.copy_(gradient(kElements, 0));
  used.step();
  used.set_learning_rate(0.25);
  fresh.set_learning_rate(0.25);
  used.restore({});
  EXPECT_EQ(used.learning_rate(), 0.25);
  used_values.fill_(1);
  for (int step = 1; step < 4; ++step) {
    grads.copy_(gradient(kElements, step));
    used.step();
    fresh.step();
  }
  EXPECT_TRUE(used_values.equal(fresh_values)) << GetParam().name;
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Optimizer, has_no_slots_before_the_first_step) {
  const torch::Tensor values = torch::ones({3});
  Optimizer optimizer({{values, torch::zeros({3})}}, torch::optim::AdamOptions(1e-3));
  EXPECT_TRUE(optimizer.state().slots.empty());
  optimizer.restore({});
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(Optimizer, slots_of_another_optimiser_are_refused) {
  const torch::Tensor values = torch::ones({3});
  Optimizer adam({{values, torch::zeros({3})}}, torch::optim::AdamOptions(1e-3));
  adam.step();
  Optimizer adagrad({{values, torch::zeros({3})}}, torch::optim::AdagradOptions(1e-3));
  EXPECT_THROW(adagrad.restore(adam.state()), Error);
  Optimizer longer({{torch::ones({4}), torch::zeros({4})}}, torch::optim::AdamOptions(1e-3));
  EXPECT_THROW(longer.restore(adam.state()), Error);
}

TEST(Optimizer, learning_rate_can_be_set_between_steps) {
  const torch::Tensor values = torch::zeros({3});
  const torch::Tensor grads = torch::ones({3});
  Optimizer optimizer({{values, grads}}, torch::optim::SGDOptions(0.5));
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  optimizer.step();
  optimizer.set_learning_rate(0.25);
  optimizer.step();
  EXPECT_EQ(values[0].item<float>(), -0.75F);
}

TEST(Optimizer, options_can_be_written_down) {
  const Json json = to_json(torch::optim::AdamOptions(1e-3).amsgrad(true));
  EXPECT_EQ(json.at("name"), "adam");
  EXPECT_EQ(json.at("lr"), 1e-3);
  EXPECT_EQ(json.at("amsgrad"), true);
}

TEST(Optimizer, refuses_options_that_are_out_of_range) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): a table of its classes
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<OptimizerOptions, const char*>> bad = {
      {SGDOptions(-1), "the optimiser sgd: the learning rate is -1"},
      {SGDOptions(kNan), "the learning rate is nan"},
      {SGDOptions(kInfinity), "the learning rate is inf"},
      {SGDOptions(1).momentum(-0.5), "momentum is -0.5"},
      {SGDOptions(1).weight_decay(-1), "weight_decay is -1"},
      {SGDOptions(1).nesterov(true), "nesterov needs a momentum above 0"},
      {AdamOptions(-1), "the optimiser adam: the learning rate is -1"},
      {AdamOptions(1).betas({0.9, 1.0}), "betas is 1, expected a number below 1"},
      {AdamOptions(1).betas({-0.1, 0.9}), "betas is -0.1"},
      {AdamOptions(1).eps(-1), "eps is -1"},
      {AdamWOptions(1).weight_decay(-1), "the optimiser adamw: weight_decay is -1"},
      {AdagradOptions(1).lr_decay(-1), "lr_decay is -1"},
      {AdagradOptions(1).initial_accumulator_value(-1), "initial_accumulator_value is -1"},
      {RMSpropOptions(1).alpha(-1), "alpha is -1"},
  };
  for (const auto& [options, text] : bad) {
    expect_error(ErrorKind::InvalidArgument, testing::HasSubstr(text),
                 [&options = options] { const Optimizer made(std::vector<Section>{}, options); });
  }
}

TEST(Optimizer, refuses_a_learning_rate_below_zero_that_is_set_later) {
  const torch::Tensor values = torch::zeros({3});
  Optimizer optimizer({{.values = values, .grads = torch::ones({3})}}, torch::optim::SGDOptions(0.1));
  for (const double rate : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorKind::InvalidArgument, testing::HasSubstr("the learning rate is"),
                 [&] { optimizer.set_learning_rate(rate); });
  }
  optimizer.set_learning_rate(0);
  EXPECT_EQ(optimizer.learning_rate(), 0);
}

}  // namespace
}  // namespace tutti::optimizer_test
