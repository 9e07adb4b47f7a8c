#include "tutti/cluster/kernels.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/torch_compat.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const c10::Device kCpu{c10::DeviceType::CPU};

// command_test checks, in processes that use them, that other instruction sets give other hashes.
TEST(Kernels, are_the_same_however_often_and_where_they_are_found) {
  const Kernels first = find_kernels(kCpu, 1);
  EXPECT_THAT(first.lines(),
              ElementsAre(HasSubstr("LibTorch"), StartsWith("updates "), "1 thread", StartsWith("results ")));
  EXPECT_THAT(first.lines_of_updates(), ElementsAre(first.lines()[0], first.lines()[1]));
  EXPECT_EQ(find_kernels(kCpu, 1).lines(), first.lines());
  EXPECT_EQ(find_lines_of_updates(), first.lines_of_updates());
  const torch::NoGradGuard no_grad;
  const compat::AutocastScope autocast(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(find_kernels(kCpu, 1).lines(), first.lines()) << "without gradients, in a scope of autocast";
  EXPECT_NE(find_kernels(kCpu, 1, "bf16").results, first.results);
}

TEST(Kernels, leave_the_random_generator_alone) {
  torch::manual_seed(3);
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(3);
  find_kernels(kCpu, 1);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Kernels, of_a_gpu_are_its_kind_and_libraries) {
  const Kernels found = find_kernels({c10::DeviceType::CUDA, 0}, 4);
  EXPECT_FALSE(found.on_cpu());
  EXPECT_THAT(found.lines(), ElementsAre(HasSubstr("CUDA")));
  EXPECT_TRUE(found.lines_of_updates().empty());
}

}  // namespace
}  // namespace tutti
