#include "tutti/params/plan.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/nccl/test_device.h"

namespace tutti::plan_test {
namespace {

using comm::testing::with_device::errors_of_ranks;
using comm::testing::with_device::with_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct SocialImpl : torch::nn::Module, comm::UsesCommunicator {
  void use(std::shared_ptr<comm::Communicator> given) override { group = std::move(given); }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight = register_parameter("weight", torch::ones({1}));
  std::shared_ptr<comm::Communicator> group;
};
TORCH_MODULE(Social);

TEST(ModuleGroup, all_that_want_one_get_the_same_group_of_all_workers) {
  with_ranks("inproc", 3, [](comm::Communicator& comm) {
    Social shared;
    Social other;
    torch::nn::ModuleList net(torch::nn::Sequential(shared), torch::nn::Linear(1, 1), shared, other);
    const Parameters parameters(*net);
    EXPECT_EQ(parameters.communicator_users().size(), 2U);
    const auto group = give_group(parameters, comm, 6);
    ASSERT_TRUE(group);
    EXPECT_EQ(shared->group, group);
    EXPECT_EQ(other->group, group);
    EXPECT_NE(group.get(), &comm);
    EXPECT_EQ(group->rank(), comm.rank());
    EXPECT_EQ(group->world(), 3);
  });
}

TEST(ModuleGroup, a_module_may_be_the_whole_model) {
  Social net;
  EXPECT_EQ(Parameters(*net).communicator_users().size(), 1U);
}

TEST(ModuleGroup, nobody_waits_for_others_where_nothing_is_wanted) {
  with_ranks("inproc", 2, [](comm::Communicator& comm) {
    torch::nn::Linear plain(1, 1);
    // If anything were sent, rank 0 would wait for the other ranks in vain.
    if (comm.rank() != 0) return;
    EXPECT_FALSE(give_group(Parameters(*plain), comm, 3));
  });
  with_ranks("inproc", 1, [](comm::Communicator& comm) {
    Social net;
    EXPECT_FALSE(give_group(Parameters(*net), comm, 3));
    EXPECT_FALSE(net->group);
  });
}

TEST(ModuleGroup, lanes_that_cannot_be_shared_equally_are_an_error_with_both_numbers) {
  const auto errors = errors_of_ranks("inproc", 3, std::chrono::seconds(60), [](comm::Communicator& comm) {
    Social net;
    give_group(Parameters(*net), comm, 4);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("there are 4 lanes for 3 workers"));
    EXPECT_THAT(error, HasSubstr("--lanes 6"));
  }
}

TEST(Kernels, of_two_tasks_differ_in_the_first_line_that_is_not_the_same) {
  const Agreement first{"worker/0", {"a library", "updates 1", "2 threads", "results 7"}};
  EXPECT_EQ(mix_of(first, {"worker/1", first.lines}), "");
  EXPECT_EQ(mix_of(first, {"worker/1", {"a library", "updates 1", "1 thread", "results 8"}}),
            "the tasks compute with different kernels: worker/0 has '2 threads', worker/1 has '1 thread'");
  // A server makes updates only, and says no more of its kernels.
  EXPECT_EQ(mix_of(first, {"ps/0", {"a library", "updates 1"}}), "");
  EXPECT_THAT(mix_of(first, {"ps/0", {"a library", "updates 2"}}), HasSubstr("ps/0 has 'updates 2'"));
  EXPECT_EQ(mix_of(first, {}), "");
}

// Ranks that are threads of one process differ only in their number of threads.
TEST(Kernels, of_all_ranks_have_to_be_the_same_unless_machines_may_be_mixed) {
  for (const bool mixed : {false, true}) {
    const auto errors = errors_of_ranks("inproc", 3, std::chrono::seconds(60), [&](comm::Communicator& comm) {
      RunConfig config;
      config.output.log_level = "error";
      config.compute.device = "cpu";
      config.compute.mixed_machines = mixed;
      config.compute.kernels = "libtorch";
      config.compute.threads = comm.rank() == 2 ? 2 : 1;
      require_same_kernels(Context(config, Identity()), comm);
    });
    for (const std::string& error : errors) {
      if (mixed)
        EXPECT_EQ(error, "");
      else
        EXPECT_THAT(error, AllOf(HasSubstr("rank 0 (worker/0) has '1 thread'"), HasSubstr("rank 2")));
    }
  }
}

// Compares weights of which those of some ranks have another hash.
std::vector<std::string> errors_with(const std::vector<std::string>& hashes, bool mixed = false) {
  const auto world = static_cast<int>(hashes.size());
  return errors_of_ranks("inproc", world, std::chrono::seconds(60), [&](comm::Communicator& comm) {
    RunConfig config;
    config.output.log_level = "error";
    config.compute.device = "cpu";
    config.compute.mixed_machines = mixed;
    require_same_weights(Context(config, Identity()), comm, 40, hashes[static_cast<size_t>(comm.rank())]);
  });
}

TEST(SameWeights, are_required_of_all_ranks_and_the_odd_one_is_named) {
  using ::testing::Each;
  EXPECT_THAT(errors_with({"a"}), Each(""));
  EXPECT_THAT(errors_with({"a", "a", "a"}), Each(""));
  EXPECT_THAT(
      errors_with({"a", "a", "b", "a"}),
      Each(AllOf(HasSubstr("after step 40, the weights of rank 2 (worker/0) are not those of the other "
                           "workers"),
                 HasSubstr("without that machine"))));
  EXPECT_THAT(errors_with({"c", "a", "b", "a", "a"}),
              Each(AllOf(HasSubstr("rank 2"), HasSubstr(" and "), HasSubstr("rank 0"))));
  EXPECT_THAT(errors_with({"a", "b"}),
              Each(AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("on other machines"))));
  EXPECT_THAT(errors_with({"a", "b"}, /*mixed=*/true), Each(""));
}

}  // namespace
}  // namespace tutti::plan_test
