// Tests NCCL itself as far as one GPU allows. The code around it is tested without a GPU (c10d_device_test).
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "tutti/comm/collectives.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/nccl/choice.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/comm/reduce_on_device.h"
#include "tutti/transport/inproc/inproc.h"

namespace tutti::comm {
namespace {

constexpr std::chrono::seconds kLong{60};
const torch::Device kGpu(torch::kCUDA, 0);

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU HERE: nothing of this file was run";
  }
};

TEST_F(OnGpu, sums_have_the_bits_of_the_cpu) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kInt}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
      std::vector<torch::Tensor> here;
      std::vector<torch::Tensor> there;
      for (int i = 0; i < 5; ++i) {
        here.push_back((torch::randn({10007}) * 100).to(type));
        there.push_back(here.back().to(kGpu));
      }
      const Reduction reduction{element_type(type), op, 10007, c10::isFloatingType(type) ? 37.0 : 0.0};
      const torch::Tensor expected = reduce_on_device(here, reduction, one_by_rank(5).program);
      const torch::Tensor sum = reduce_on_device(there, reduction, one_by_rank(5).program);
      EXPECT_TRUE(sum.is_cuda());
      EXPECT_TRUE(torch::equal(sum.cpu().view(torch::kByte), expected.view(torch::kByte)))
          << c10::toString(type) << ", operation " << static_cast<int>(op);
    }
  }
}

class OverNccl : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (!IsSkipped() && !nccl_built()) GTEST_SKIP() << "NO NCCL IN THIS BUILD: it was not run";
  }
};

TEST_F(OverNccl, one_rank_adds_and_ends_in_peace) {
  const auto device = nccl_on_device(std::make_shared<LocalRendezvous>(), kGpu, {}, kLong);
  EXPECT_TRUE(device->takes(torch::zeros({1}, kGpu)));
  EXPECT_FALSE(device->takes(torch::zeros({1})));
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kInt}) {
    const torch::Tensor values = (torch::randn({10007}, kGpu) * 100).to(type);
    const torch::Tensor before = values.clone();
    const Sources sources = one_by_rank(1);
    const Array array = array_of(values);
    const ArraySum sum{{element_type(type), ReduceOp::Sum, values.numel()}, &sources, {array}, {array}};
    device->combine({&sum, 1}, operation_of("all_reduce", {.any_order = true}, kLong));
    EXPECT_TRUE(torch::equal(values, before));
  }
}

TEST_F(OverNccl, one_rank_keeps_its_tensors_on_the_gpu) {
  const std::unique_ptr<Communicator> comm =
      std::make_unique<Collectives>(std::move(inproc_transports(1, kLong).front()), kLong, nullptr,
                                    nccl_on_device(std::make_shared<LocalRendezvous>(), kGpu, {}, kLong));
  const torch::Tensor values = torch::randn({100}, kGpu);
  EXPECT_TRUE(comm->on_device(values));
  const torch::Tensor gathered = torch::empty_like(values);
  comm->all_gather(gathered, values).wait();
  EXPECT_TRUE(torch::equal(gathered, values));
  comm->reduce_scatter(gathered, values, ReduceOp::Average).wait();
  EXPECT_TRUE(torch::equal(gathered, values));
}

TEST_F(OverNccl, two_ranks_that_share_a_gpu_do_without) {
  const std::string gpu = device_word(kGpu);
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", gpu}, {"worker/1", "b", gpu}}), "");
  EXPECT_EQ(why_not_nccl({{"worker/0", "a", gpu}, {"worker/1", "a", gpu}}),
            "worker/0 and worker/1 share a GPU");
}

}  // namespace
}  // namespace tutti::comm
