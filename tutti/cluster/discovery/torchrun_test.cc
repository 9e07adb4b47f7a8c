#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The variables that torchrun --nnodes 2 --nproc-per-node 2 sets in the first process of its second node.
const Variables kTask = {{"RANK", "2"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "0"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", "1"},
                         {"GROUP_WORLD_SIZE", "2"},
                         {"ROLE_NAME", "default"},
                         {"ROLE_RANK", "2"},
                         {"ROLE_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "node0.example.org"},
                         {"MASTER_PORT", "29500"},
                         {"OMP_NUM_THREADS", "1"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                         {"TORCHELASTIC_MAX_RESTARTS", "3"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                         {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}};

template <class Matcher>
void expect_torchrun_refused(const Matcher& text, const Environment& environment) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("torchrun"), text),
               [&] { from_torchrun(environment); });
}

TEST(FromTorchrun, reads_its_variables) {
  const auto found = from_torchrun(Environment(kTask));
  ASSERT_TRUE(found);
  expect_standing(*found, 2, 4, 0, 2);
  EXPECT_EQ(found->task, (Task{"worker", 2}));
  EXPECT_EQ(found->board_address, "node0.example.org:29500");
  EXPECT_EQ(found->source, "torchrun");
  EXPECT_TRUE(found->cluster.empty());
}

TEST(FromTorchrun, tells_its_attempts_apart) {
  EXPECT_EQ(from_torchrun(Environment(kTask))->attempt, 0);
  EXPECT_EQ(from_torchrun(with(kTask, {{"TORCHELASTIC_RESTART_COUNT", "2"}}))->attempt, 2);
}

TEST(FromTorchrun, says_nothing_without_a_place) {
  EXPECT_FALSE(from_torchrun(Environment()));
  EXPECT_FALSE(from_torchrun(Environment({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}})));
}

TEST(FromTorchrun, one_process_a_pod_has_no_local_pair) {
  const auto pod = from_torchrun(Environment(
      {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}}));
  expect_standing(*pod, 1, 3, 0, 1);
}

TEST(FromTorchrun, can_do_without_a_master) {
  EXPECT_EQ(from_torchrun(without(kTask, {"MASTER_ADDR", "MASTER_PORT"}))->board_address, "");
}

TEST(FromTorchrun, puts_an_ipv6_master_in_brackets) {
  EXPECT_EQ(from_torchrun(with(kTask, {{"MASTER_ADDR", "fd00::2"}}))->board_address, "[fd00::2]:29500");
}

TEST(FromTorchrun, leaves_the_rank_to_the_launcher_that_has_it) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_STEP_ID"}) {
    for (const char* exported : {"WORLD_SIZE", "LOCAL_RANK"})
      EXPECT_FALSE(from_torchrun(Environment({{exported, "4"}, {"MASTER_ADDR", "h"}, {name, "0"}}))) << name;
  }
}

TEST(FromTorchrun, incomplete_variables_are_refused) {
  expect_torchrun_refused(AllOf(HasSubstr("RANK='2'"), HasSubstr("WORLD_SIZE is not")),
                          without(kTask, {"WORLD_SIZE"}));
  expect_torchrun_refused(AllOf(HasSubstr("WORLD_SIZE='4'"), HasSubstr("RANK is not")),
                          without(kTask, {"RANK"}));
  // Otherwise each process of the job would train alone.
  for (const char* alone : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    expect_torchrun_refused(AllOf(HasSubstr(alone), HasSubstr("RANK is not")),
                            Environment({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}, {alone, "1"}}));
  expect_torchrun_refused(HasSubstr("LOCAL_RANK is not"), without(kTask, {"LOCAL_RANK"}));
  expect_torchrun_refused(HasSubstr("LOCAL_WORLD_SIZE is not"), without(kTask, {"LOCAL_WORLD_SIZE"}));
  expect_torchrun_refused(HasSubstr("MASTER_PORT (not set)"), without(kTask, {"MASTER_PORT"}));
  expect_torchrun_refused(HasSubstr("MASTER_ADDR (not set)"), without(kTask, {"MASTER_ADDR"}));
}

TEST(FromTorchrun, contradictions_are_refused) {
  expect_torchrun_refused(AllOf(HasSubstr("RANK='4'"), HasSubstr("WORLD_SIZE='4'")),
                          with(kTask, {{"RANK", "4"}}));
  expect_torchrun_refused(AllOf(HasSubstr("LOCAL_RANK='2'"), HasSubstr("LOCAL_WORLD_SIZE='2'")),
                          with(kTask, {{"LOCAL_RANK", "2"}}));
  expect_torchrun_refused(AllOf(HasSubstr("LOCAL_WORLD_SIZE='5'"), HasSubstr("WORLD_SIZE='4'")),
                          with(kTask, {{"LOCAL_WORLD_SIZE", "5"}}));
  expect_torchrun_refused(HasSubstr("LOCAL_RANK='1' is more than RANK='0'"),
                          with(kTask, {{"RANK", "0"}, {"LOCAL_RANK", "1"}}));
  expect_torchrun_refused(HasSubstr("WORLD_SIZE='0'"), Environment({{"RANK", "0"}, {"WORLD_SIZE", "0"}}));
}

TEST(FromTorchrun, a_value_that_is_no_number_is_quoted) {
  for (const char* text : {"", "x", "-1", "1.5", " 1", "99999999999"}) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
      expect_torchrun_refused(HasSubstr(std::string(name) + "='" + text + "'"), with(kTask, {{name, text}}));
    }
  }
  expect_torchrun_refused(HasSubstr("65536"), with(kTask, {{"MASTER_PORT", "65536"}}));
  expect_torchrun_refused(HasSubstr("'a b'"), with(kTask, {{"MASTER_ADDR", "a b"}}));
}

}  // namespace
}  // namespace tutti::discovery
