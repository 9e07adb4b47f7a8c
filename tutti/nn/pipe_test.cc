#include "tutti/nn/pipe.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"

namespace tutti::nn::pipe_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
  return names;
}

TEST(WindowInput, rescales_each_column_to_its_range_and_puts_the_mean_for_what_is_missing) {
  const torch::Tensor rows = torch::tensor(
      {{-10.F, 5.F, kNothing}, {30.F, 5.F, kNothing}, {kNothing, kNothing, kNothing}, {10.F, 5.F, kNothing}});
  PipeNet net = WindowInput().build(data::statistics_of(rows));
  EXPECT_TRUE(
      torch::equal(net->forward(rows),
                   torch::tensor({{-1.F, 0.F, 0.F}, {1.F, 0.F, 0.F}, {0.F, 0.F, 0.F}, {0.F, 0.F, 0.F}})));
  EXPECT_EQ(net->columns(), 3);
}

TEST(WindowInput, is_in_a_checkpoint_and_is_not_trained) {
  PipeNet net = (WindowInput() | Dense(1)).build(data::statistics_of(torch::rand({4, 2})));
  EXPECT_THAT(names_of(*net), ElementsAre("window1.scale", "window1.shift", "window1.filler", "dense1.weight",
                                          "dense1.bias"));
  EXPECT_FALSE(net->named_parameters()["window1.scale"].requires_grad());
  EXPECT_TRUE(net->named_parameters()["dense1.weight"].requires_grad());
}

TEST(WindowInput, says_which_column_has_no_range) {
  const torch::Tensor rows = torch::tensor({{1.F, INFINITY}, {2.F, 3.F}});
  expect_error(ErrorKind::InvalidArgument, HasSubstr("column 2: its minimum is 3 and its maximum inf"),
               [&] { WindowInput().build(data::statistics_of(rows)); });
}

TEST(WindowInput, needs_to_be_first_and_to_know_the_data) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("first layer"),
               [] { WindowInput().build(PipeInput{3}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("first layer"), [] {
    (Dense(3) | WindowInput()).build(data::statistics_of(torch::rand({4, 2})));
  });
}

TEST(Pipe, does_layer_by_layer_what_libtorch_does) {
  torch::manual_seed(5);
  PipeNet net = (Dense(4, torch::tanh) | torch::relu |
                 torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})) | Dense(2))
                    .build(PipeInput{3});
  EXPECT_EQ(net->columns(), 2);
  EXPECT_THAT(names_of(*net), ElementsAre("dense1.weight", "dense1.bias", "layer1.weight", "layer1.bias",
                                          "dense2.weight", "dense2.bias"));
  const auto p = net->named_parameters();
  const torch::Tensor x = torch::rand({5, 3});
  torch::Tensor y = torch::relu(torch::tanh(torch::linear(x, p["dense1.weight"], p["dense1.bias"])));
  y = torch::layer_norm(y, {4}, p["layer1.weight"], p["layer1.bias"]);
  EXPECT_TRUE(torch::equal(net->forward(x), torch::linear(y, p["dense2.weight"], p["dense2.bias"])));
  const double bound = std::sqrt(6.0 / (3 + 4));
  EXPECT_LE(p["dense1.weight"].abs().max().item<double>(), bound);
  EXPECT_EQ(p["dense1.bias"].abs().max().item<double>(), 0);
}

TEST(Pipe, is_a_value_that_builds_as_many_nets_as_one_likes) {
  const Pipe pipe = Dense(3, torch::tanh) | Dense(1);
  torch::manual_seed(1);
  PipeNet one = pipe.build(PipeInput{2});
  PipeNet other = pipe.build(PipeInput{2});
  torch::manual_seed(1);
  PipeNet same = pipe.build(PipeInput{2});
  const torch::Tensor x = torch::rand({4, 2});
  EXPECT_TRUE(torch::equal(one->forward(x), same->forward(x)));
  EXPECT_FALSE(torch::equal(one->forward(x), other->forward(x)));
}

TEST(Pipe, gives_each_net_modules_of_its_own) {
  const Pipe pipe = Dense(3) | torch::nn::Linear(3, 3);
  torch::manual_seed(1);
  PipeNet one = pipe.build(PipeInput{2});
  PipeNet other = pipe.build(PipeInput{2});
  torch::manual_seed(1);
  PipeNet same = pipe.build(PipeInput{2});
  const auto weight = [](PipeNet& net) { return net->named_parameters()["layer1.weight"]; };
  EXPECT_FALSE(torch::equal(weight(one), weight(other)));
  EXPECT_TRUE(torch::equal(weight(one), weight(same)));
  const torch::NoGradGuard no_grad;
  weight(one).zero_();
  EXPECT_GT(weight(same).abs().sum().item<double>(), 0);
}

TEST(Pipe, leaves_numbers_out_only_in_training) {
  PipeNet net = (Dense(8) | Dropout(0.5)).build(PipeInput{2});
  const torch::Tensor x = torch::rand({16, 2});
  EXPECT_GT(net->forward(x).eq(0).sum().item<int64_t>(), 0);
  net->eval();
  EXPECT_EQ(net->forward(x).eq(0).sum().item<int64_t>(), 0);
}

TEST(Pipe, refuses_what_makes_no_sense) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("Dense(0)"), [] { static_cast<void>(Dense(0)); });
  for (const double p : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("Dropout"), [&] { static_cast<void>(Dropout(p)); });
}

}  // namespace
}  // namespace tutti::nn::pipe_test
