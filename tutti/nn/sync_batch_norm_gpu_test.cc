#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/comm/test_ranks.h"
#include "tutti/nn/sync_batch_norm.h"

namespace tutti::nn {
namespace {

using torch::Tensor;

// Runs one rank on the GPU and one on the CPU. Two ranks on one GPU would share LibTorch's only backward
// thread for that device, and wait there for each other.
void expect_as_alone(torch::MemoryFormat format, torch::ScalarType type, double tolerance) {
  torch::manual_seed(1);
  const Tensor input = (torch::randn({6, 4, 5, 3}) * 3 + 1).to(type);
  const Tensor target = torch::randn_like(input, torch::kFloat32);
  const auto loss_of = [&](const Tensor& y, int64_t begin, int64_t end) {
    return (y.to(torch::kFloat32).square() * target.slice(0, begin, end).to(y.device())).sum();
  };
  torch::nn::BatchNorm2d plain(4);
  const Tensor x = input.to(torch::kFloat32).clone().requires_grad_();
  const Tensor y = plain(x);
  loss_of(y, 0, 6).backward();
  const auto near = [&](const Tensor& actual, const Tensor& expected) {
    return torch::allclose(actual.cpu().to(torch::kFloat32), expected, tolerance, tolerance);
  };
  std::vector<Tensor> running(2);
  comm::testing::with_ranks("inproc", 2, [&](comm::Communicator& comm) {
    const torch::Device device(comm.rank() == 0 ? torch::kCUDA : torch::kCPU);
    const int64_t begin = comm.rank() == 0 ? 0 : 4;
    const int64_t end = comm.rank() == 0 ? 4 : 6;
    SyncBatchNorm norm(4);
    norm->to(device);
    norm->use({&comm, [](comm::Communicator*) {}});
    const Tensor mine = input.slice(0, begin, end).to(device).clone(format).requires_grad_();
    const Tensor result = norm(mine);
    EXPECT_EQ(result.device().type(), device.type());
    EXPECT_EQ(result.scalar_type(), type);
    EXPECT_TRUE(result.is_contiguous(format));
    loss_of(result, begin, end).backward();
    EXPECT_TRUE(near(result.detach(), y.detach().slice(0, begin, end)));
    EXPECT_TRUE(near(mine.grad(), x.grad().slice(0, begin, end)));
    EXPECT_EQ(norm->weight.grad().scalar_type(), torch::kFloat32);
    running[static_cast<size_t>(comm.rank())] = norm->running_var.cpu();
  });
  EXPECT_TRUE(running[0].equal(running[1]));
  EXPECT_TRUE(torch::allclose(running[0], plain->running_var, 1e-5, 1e-6));
}

TEST(SyncBatchNormGpu, is_batch_norm_of_the_examples_of_all_workers) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "NOT TESTED: there is no GPU";
  for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
    expect_as_alone(format, torch::kFloat32, 1e-4);
    expect_as_alone(format, torch::kBFloat16, 0.05);
  }
}

}  // namespace
}  // namespace tutti::nn
