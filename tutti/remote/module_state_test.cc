#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/test_errors.h"
#include "tutti/remote/module_service.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A module that was trained for two steps.
struct Learnt {
  explicit Learnt(const OptimizerOptions& options) : optimizer(parameters.blocks(), options) {
    for (int i = 0; i < 2; ++i) step();
  }
  void step() {
    parameters.zero_grads();
    net->forward(torch::ones({3, 2})).square().sum().backward();
    optimizer.step();
  }
  std::vector<store::NamedTensor> copy() const {
    auto state = state_of(parameters, optimizer);
    for (auto& [name, tensor] : state) tensor = tensor.clone();
    return state;
  }

  torch::nn::Sequential net{torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4)};
  Parameters parameters{*net};
  Optimizer optimizer;
};

TEST(ModuleState, is_by_name) {
  const Learnt learnt(torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : learnt.copy()) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                          "1.num_batches_tracked", "momentum_buffer/0.weight", "momentum_buffer/0.bias",
                          "momentum_buffer/1.weight", "momentum_buffer/1.bias", "sgd/steps"));
}

TEST(ModuleState, goes_on_from_where_it_was_to_the_bit) {
  Learnt one{torch::optim::AdamOptions(0.1)};
  Learnt other{torch::optim::AdamOptions(0.1)};
  const auto state = one.copy();
  other.step();
  load_state(other.parameters, other.optimizer, state);
  one.step();
  other.step();
  EXPECT_EQ(other.parameters.sha256(), one.parameters.sha256());
  EXPECT_EQ(other.optimizer.steps(), 3);
}

TEST(ModuleState, of_another_module_or_optimiser_is_refused_and_changes_nothing) {
  Learnt adam{torch::optim::AdamOptions(0.1)};
  const auto own = adam.copy();
  const std::string before = adam.parameters.sha256();
  const auto refused = [&](std::vector<store::NamedTensor> state, const char* why) {
    for (auto& [name, tensor] : state) {
      if (tensor.defined() && tensor.is_floating_point()) tensor = tensor + 1;
    }
    expect_error(ErrorKind::InvalidArgument, HasSubstr(why),
                 [&] { load_state(adam.parameters, adam.optimizer, state); });
    EXPECT_EQ(adam.parameters.sha256(), before);
    EXPECT_EQ(adam.optimizer.steps(), 2);
  };
  refused(Learnt(torch::optim::SGDOptions(0.1)).copy(), "adam/steps");
  auto less = own;
  less.erase(less.begin());
  refused(less, "no 0.weight");
  auto more = own;
  more.push_back({"2.weight", torch::ones({1})});
  refused(more, "has 2.weight");
  auto twice = own;
  twice.push_back(own.front());
  refused(twice, "0.weight is given twice");
  auto wider = own;
  wider.front().tensor = torch::ones({4, 3});
  refused(wider, "float32[4,3]");
  auto half = own;
  half.erase(half.begin() + 7);
  refused(half, "exp_avg");
  adam.step();
  EXPECT_EQ(adam.optimizer.steps(), 3);
}

}  // namespace
}  // namespace tutti::ps
