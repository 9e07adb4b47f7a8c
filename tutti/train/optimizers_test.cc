// Groups of parameters, and optimisers of one's own, in a Trainer.
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/comm/test_ranks.h"
#include "tutti/store/checkpoint.h"
#include "tutti/train/schedule.h"
#include "tutti/train/test_trainer.h"

namespace tutti::optimizers_test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::vector<ParameterGroup> kGroups = {{.names = "*.bias", .weight_decay = 0},
                                             {.names = "norm.*", .weight_decay = 0},
                                             {.names = "head.*", .rate = 0.3},
                                             {.names = "conv.*", .frozen = true}};

OptimizerOptions grouped_adamw() { return {torch::optim::AdamWOptions(1e-2).weight_decay(0.1), kGroups}; }

OptimizerOptions test_lion() {
  return ElementwiseOptimizer{.name = "lion",
                              .rate = 1e-3,
                              .slots = {"exp_avg"},
                              .numbers = {{"beta", 0.9}},
                              .update = [](const ElementwiseUpdate& u) {
                                u.values.sub_((u.slots[0] * 0.9 + u.grads * 0.1).sign() * u.rate);
                                u.slots[0].mul_(0.99).add_(u.grads, 0.01);
                              }};
}

OptimizerOptions test_replicated() {
  return ReplicatedOptimizer{.name = "plain_adam", .make = [](const std::vector<torch::Tensor>& parameters) {
                               return std::make_unique<torch::optim::Adam>(parameters,
                                                                           torch::optim::AdamOptions(1e-2));
                             }};
}

struct Made {
  std::string hash;
  std::string err;
};

Made make(RunConfig config, const OptimizerOptions& optimizer, int64_t steps,
          const TrainerOptions& options = {}) {
  config.training.steps = steps;
  config.output.log_level = "warning";
  const Context context = test_context(config);
  testing::internal::CaptureStderr();
  try {
    Trainer trainer(context, test_net(), optimizer, test_loss, options);
    trainer.fit(test_feed().shuffle());
    return {trainer.parameters().sha256(), testing::internal::GetCapturedStderr()};
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
}

// An ordinary training loop with PyTorch's own groups.
TEST(Optimizers, groups_give_the_bits_of_a_loop_with_torch_optim_under_a_schedule) {
  constexpr int64_t kSteps = 20;
  RunConfig config = test_flags();
  config.compute.layout = "contiguous";
  config.training.steps = kSteps;
  const auto rate = [](int64_t step) { return 1e-2 / static_cast<double>(1 + step); };
  const Context context = test_context(config);
  const auto net = test_net();
  const torch::Tensor frozen = net->conv->weight.detach().clone();
  Trainer trainer(context, net, grouped_adamw(), test_loss, {.learning_rate = rate});
  trainer.fit(test_feed());

  const auto plain = test_net();
  for (torch::Tensor& parameter : plain->conv->parameters()) parameter.set_requires_grad(false);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(plain->norm->parameters());
  groups.emplace_back(std::vector<torch::Tensor>{plain->head->weight});
  groups.emplace_back(std::vector<torch::Tensor>{plain->head->bias});
  torch::optim::AdamW adamw(groups, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  for (const size_t i : {0, 2})
    static_cast<torch::optim::AdamWOptions&>(adamw.param_groups()[i].options()).weight_decay(0);
  const data::Sampler sampler(100, {.order = data::Order::Sequential, .lanes = 1, .batch = 4});
  const data::Feed feed = test_feed();  // draws numbers
  std::vector<int64_t> examples;
  for (int64_t step = 0; step < kSteps; ++step) {
    sampler.examples(step, 0, examples);
    torch::manual_seed(lane_seed(1, step, 0));
    adamw.zero_grad();
    test_loss(*plain, feed.read(examples)).loss.backward();
    for (const size_t i : {0, 1, 2}) adamw.param_groups()[i].options().set_lr(rate(step) * (i > 0 ? 0.3 : 1));
    adamw.step();
  }
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(item.value().equal(net->named_parameters()[item.key()])) << item.key();
  EXPECT_TRUE(net->conv->weight.equal(frozen));
}

TEST(Optimizers, groups_and_optimisers_of_ones_own_resume_with_the_same_bits) {
  for (const OptimizerOptions& optimizer : {grouped_adamw(), test_lion(), test_replicated()}) {
    const TestFolder folder;
    RunConfig config = test_flags();
    const std::string straight = make(config, optimizer, 30).hash;
    config.checkpoints.logdir = folder / "run";
    make(config, optimizer, 17);
    const Made resumed = make(config, optimizer, 30);
    EXPECT_EQ(resumed.hash, straight) << name_of(optimizer);
    EXPECT_EQ(resumed.err, "") << name_of(optimizer);
  }
}

TEST(Optimizers, a_checkpoint_records_the_groups_and_has_no_state_of_frozen_parameters) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  make(config, grouped_adamw(), 5);
  const auto checkpoint = store::load_checkpoint(folder / "run/ckpt-5");
  EXPECT_EQ(checkpoint.state.at("optimizer").at("groups").size(), kGroups.size());
  std::vector<std::string> names;
  for (const auto& tensor : checkpoint.optimizer) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::Contains("exp_avg/head.weight"));
  EXPECT_THAT(names, testing::Each(Not(HasSubstr("conv"))));
  EXPECT_THAT(make(config, {torch::optim::AdamWOptions(1e-2).weight_decay(0.1)}, 6).err,
              HasSubstr("the optimiser adamw had groups"));
}

TEST(Optimizers, a_checkpoint_of_another_optimiser_is_refused) {
  const TestFolder folder;
  RunConfig config = test_flags();
  config.checkpoints.logdir = folder / "run";
  make(config, test_lion(), 5);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("was made with the optimiser lion"),
               [&] { make(config, test_replicated(), 6); });
}

TEST(Optimizers, a_group_that_matches_nothing_is_an_error_of_the_trainer) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the group 'haed.*' of the optimiser matches no"), [] {
    make(test_flags(), {torch::optim::AdamOptions(1e-2), {{.names = "haed.*", .rate = 2}}}, 1);
  });
}

}  // namespace
}  // namespace tutti::optimizers_test
