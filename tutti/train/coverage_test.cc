#include "tutti/train/coverage.h"

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/kernels/same_kernels.h"
#include "tutti/train/test_trainer.h"

namespace tutti::coverage_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RunConfig same_flags(const std::string& kernels = "same", int threads = 1) {
  RunConfig config = test_flags();
  config.compute.kernels = kernels;
  config.compute.threads = threads;
  config.training.lanes = 2;
  return config;
}

// A network whose second layer is followed by a function that LibTorch computes with code of its own.
LossOutput bessel_loss(torch::nn::SequentialImpl& net, const Batch& batch) {
  const torch::Tensor hidden = net.forward(batch["image"].flatten(1));
  return {torch::i0(hidden).mean(), hidden};
}

std::shared_ptr<torch::nn::SequentialImpl> bessel_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(36, 5), torch::nn::ReLU(), torch::nn::Linear(5, 4)).ptr();
}

TEST(SameKernelsOfATraining, give_the_same_bits_with_any_number_of_threads) {
  const std::string one = train(same_flags(), 20);
  for (const int threads : {2, 3}) EXPECT_EQ(train(same_flags("same", threads), 20), one) << threads;
  EXPECT_EQ(train(same_flags("strict", 2), 20), one);
}

TEST(SameKernelsOfATraining, go_on_with_another_number_of_threads) {
  const std::string one = train(same_flags(), 20);
  const TestFolder folder;
  RunConfig config = same_flags();
  config.checkpoints.logdir = folder.path();
  config.checkpoints.every = "10";
  train(config, 20, 13);
  config.compute.threads = 3;
  EXPECT_EQ(train(config, 20), one);
}

TEST(SameKernelsOfATraining, leave_libtorch_as_it_was) {
  const std::string before = train(test_flags(), 5);
  train(same_flags(), 5);
  EXPECT_FALSE(kernels::SameKernels::are_in_use());
  EXPECT_EQ(train(test_flags(), 5), before);
}

// The names are remembered in this process, so these expectations are in one test.
TEST(SameKernelsOfATraining, name_what_they_do_not_cover) {
  RunConfig config = same_flags("strict");
  config.training.steps = 2;
  {
    const Context context = test_context(config);
    Trainer covered(context, test_net(), kAdam, test_loss);
    covered.fit(test_feed());
    EXPECT_THAT(covered.report().not_covered, IsEmpty());
  }
  {
    const Context context = test_context(config);
    Trainer trainer(context, bessel_net(), kAdam, bessel_loss);
    expect_error(ErrorKind::Unimplemented,
                 AllOf(HasSubstr("aten::i0 (step 1, after layer '2')"), HasSubstr("--kernels same")),
                 [&] { trainer.fit(test_feed()); });
  }
  config.compute.kernels = "same";
  const Context context = test_context(config);
  Trainer trainer(context, bessel_net(), kAdam, bessel_loss);
  trainer.fit(test_feed());
  EXPECT_EQ(trainer.report().kernels, "same");
  EXPECT_THAT(trainer.report().not_covered,
              ElementsAre(HasSubstr("aten::i0 (step 1, after layer '2')"), HasSubstr("aten::special_i1")));
}

}  // namespace
}  // namespace tutti::coverage_test
