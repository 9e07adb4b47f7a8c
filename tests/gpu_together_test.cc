// Tests several workers on one GPU, whose gradients go through the host's memory.
#include <gmock/gmock.h>
#include <torch/cuda.h>

#include "tests/served.h"
#include "tests/together.h"

namespace tutti::testing {
namespace {

class GpuTogether : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU HERE: nothing of this file was run";
  }
  const TestFolder folder_;
  const std::vector<std::string> flags_ = {"--net", "odd",     "--lanes", "4",        "--batch",
                                           "3",     "--steps", "50",      "--device", "cuda"};
};

TEST_F(GpuTogether, two_on_one_gpu_give_the_bits_of_one) {
  EXPECT_EQ(hash_of(training(2, flags_), folder_), hash_of(training(1, flags_), folder_));
}

// A network large enough for those of cuDNN's algorithms that give other bits each time.
TEST_F(GpuTogether, two_and_four_train_the_digits_with_the_bits_of_one) {
  const Flags mnist = {program_path("mnist"), "--lanes", "4",        "--batch", "64",       "--steps", "50",
                       "--threads",           "1",       "--device", "cuda",    "--logdir="};
  const std::string one = hash_of(mnist, folder_);
  for (const char* workers : {"2", "4"})
    EXPECT_EQ(hash_of(Flags{program_path("tutti"), "run", "-n", workers, "--"} + mnist, folder_), one)
        << workers;
}

// Servers update on the CPU, with other bits than a worker that trains without servers, which updates on the
// GPU.
TEST_F(GpuTogether, any_number_and_a_server_in_lock_step_give_the_same_bits) {
  const Flags flags = with(flags_, {"--strategy", "ps-sync"});
  const std::string one = hash_of(served(1, 1, flags), folder_);
  EXPECT_EQ(hash_of(served(2, 2, flags), folder_), one);
  EXPECT_EQ(hash_of(served(1, 4, flags), folder_), one);
}

TEST_F(GpuTogether, two_and_a_server_train) {
  const auto result = run_program(served(1, 2, with(flags_, {"--strategy", "ps-async"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(GpuTogether, nccl_on_one_gpu_is_an_error) {
  if (torch::cuda::device_count() > 1) GTEST_SKIP() << "HERE ARE SEVERAL GPUS: two workers do not share one";
  auto command = training(2, flags_);
  command.insert(command.end(), {"--comm", "nccl"});
  const auto result = run_program(command);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, ::testing::HasSubstr("--comm nccl is not possible: "));
}

// NCCL refuses ranks that share a GPU, unless it takes them for ranks on different hosts; so does Tutti. Each
// worker says that its host is another one: to NCCL by a variable, to Tutti by a process namespace.
class GpuTogetherOverNccl : public GpuTogether {
 protected:
  void SetUp() override {
    GpuTogether::SetUp();
    if (IsSkipped()) return;
    if (run_program({"unshare", "--pid", "--fork", "--mount-proc", "true"}).exit_code != 0)
      GTEST_SKIP() << "NOT TESTED: this user cannot make process namespaces";
    if (run_program({program_path("tutti"), "doctor"}).out.find("NCCL yes") == std::string::npos)
      GTEST_SKIP() << "NO NCCL IN THIS BUILD: it was not run";
  }

  Flags over_nccl(int workers, const Flags& more = {}) const {
    const Flags apart = {"sh", "-c",
                         "export NCCL_HOSTID=host$$ NCCL_SOCKET_IFNAME=lo; "
                         "exec unshare --pid --fork --mount-proc --kill-child \"$@\"",
                         "apart"};
    Flags command = {program_path("tutti"), "run", "-n", std::to_string(workers), "--"};
    return command + apart + training(1, flags_) + Flags{"--comm", "nccl"} + more;
  }
};

TEST_F(GpuTogetherOverNccl, two_give_the_bits_of_one) {
  EXPECT_EQ(hash_of(over_nccl(2), folder_), hash_of(training(1, flags_), folder_));
}

TEST_F(GpuTogetherOverNccl, four_give_the_bits_of_one) {
  EXPECT_EQ(hash_of(over_nccl(4), folder_), hash_of(training(1, flags_), folder_));
}

TEST_F(GpuTogetherOverNccl, two_with_a_sharded_optimiser_give_the_bits_of_one) {
  EXPECT_EQ(hash_of(over_nccl(2, {"--optimizer-state", "sharded"}), folder_),
            hash_of(training(1, flags_), folder_));
}

TEST_F(GpuTogetherOverNccl, its_own_sum_trains) {
  const auto result = run_program(over_nccl(2, {"--reduce", "fast"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace tutti::testing
