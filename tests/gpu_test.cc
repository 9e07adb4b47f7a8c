// Tests the same program on a GPU. Built if LibTorch supports CUDA; skips visibly if there is no device.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "tutti/base/test_folder.h"
#include "tutti/metrics/metrics.h"
#include "tutti/train/test_training.h"
#include "tutti/train/trainer.h"

namespace tutti {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU HERE: nothing of this file was run";
  }

  static RunConfig config() {
    RunConfig config = test_flags();
    config.compute.device = "cuda";
    config.training.steps = 60;
    return config;
  }
};

TEST_F(Gpu, keeps_parameters_gradients_and_optimiser_on_the_device) {
  const Context context = test_context(config());
  Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
  trainer.fit(test_feed().shuffle());
  EXPECT_TRUE(trainer.parameters().values().is_cuda());
  EXPECT_TRUE(trainer.parameters().grads().is_cuda());
  for (const auto& slot : trainer.optimizer().state().slots) EXPECT_TRUE(slot.vector.is_cuda()) << slot.name;
  ASSERT_TRUE(trainer.report().device_seconds.has_value());
  EXPECT_GT(*trainer.report().device_seconds, 0);
}

TEST_F(Gpu, learns_what_the_cpu_learns) {
  const Context context = test_context(config());
  Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
  trainer.fit(test_feed().shuffle());
  EXPECT_GT(trainer.evaluate(test_feed(), {metrics::accuracy("label")}).at("accuracy"), 0.9);
}

// Some of cuDNN's algorithms give other bits each time.
TEST_F(Gpu, gives_the_same_bits_each_time) {
  const data::Feed feed = test_feed();
  std::vector<torch::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    const Context context = test_context(config());
    Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
    trainer.fit(feed.shuffle());
    weights.push_back(trainer.parameters().values().cpu());
  }
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  EXPECT_TRUE(torch::equal(weights[0], weights[2]));
}

TEST_F(Gpu, resumes_from_a_checkpoint_that_a_cpu_can_read) {
  TestFolder folder;
  const data::Feed feed = test_feed();  // drawn by the same kernels for both
  RunConfig on_gpu = config();
  on_gpu.checkpoints.logdir = folder / "run";
  {
    const Context context = test_context(on_gpu);
    Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
    trainer.fit(feed.shuffle());
  }
  RunConfig on_cpu = on_gpu;
  on_cpu.compute.device = "cpu";
  on_cpu.training.steps = 61;
  const Context context = test_context(on_cpu);
  Trainer trainer(context, test_net(), torch::optim::AdamOptions(1e-2), test_loss);
  trainer.fit(feed.shuffle());
  EXPECT_EQ(trainer.step(), 61);
}

}  // namespace
}  // namespace tutti
