#include "tutti/cluster/discovery/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Recorded on a cluster: the second task of srun -N1 -n4.
const Variables kOneNode = {{"SLURMD_NODENAME", "t-cn0117"},
                            {"SLURM_CPUS_ON_NODE", "4"},
                            {"SLURM_DISTRIBUTION", "block"},
                            {"SLURM_GTIDS", "0,1,2,3"},
                            {"SLURM_JOBID", "901593"},
                            {"SLURM_JOB_ID", "901593"},
                            {"SLURM_JOB_NODELIST", "t-cn0117"},
                            {"SLURM_JOB_NUM_NODES", "1"},
                            {"SLURM_LAUNCH_NODE_IPADDR", "130.239.244.116"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NNODES", "1"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_NODELIST", "t-cn0117"},
                            {"SLURM_NPROCS", "4"},
                            {"SLURM_NTASKS", "4"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_SRUN_COMM_PORT", "33360"},
                            {"SLURM_STEPID", "0"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NODELIST", "t-cn0117"},
                            {"SLURM_STEP_NUM_NODES", "1"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_STEP_TASKS_PER_NODE", "4"},
                            {"SLURM_TASKS_PER_NODE", "4"}};

// The last of seven tasks on four nodes, in a job that has more tasks and nodes.
const Variables kFourNodes = {
    {"SLURM_JOB_ID", "7"},         {"SLURM_JOB_NODELIST", "node[01-03,7],gpu[1-2]x"},
    {"SLURM_LOCALID", "0"},        {"SLURM_NODEID", "3"},
    {"SLURM_NTASKS", "7"},         {"SLURM_PROCID", "6"},
    {"SLURM_STEP_ID", "3"},        {"SLURM_STEP_NODELIST", "node[01-03,7]"},
    {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};

// A shell or a batch script inside an allocation of two nodes, which is not a step.
const Variables kBatchScript = {{"SLURM_JOB_ID", "7"},
                                {"SLURM_JOB_NODELIST", "node[01-02]"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_NPROCS", "4"},
                                {"SLURM_TASKS_PER_NODE", "2(x2)"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_NODEID", "0"},
                                {"SLURM_GTIDS", "0"},
                                {"SLURM_JOB_NUM_NODES", "2"}};

template <class Matcher>
void expect_slurm_refused(const Matcher& text, const Environment& environment) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("Slurm"), text), [&] { from_slurm(environment); });
}

TEST(FromSlurm, reads_a_step_on_one_node) {
  const auto found = from_slurm(Environment(kOneNode));
  ASSERT_TRUE(found);
  expect_standing(*found, 1, 4, 1, 4);
  EXPECT_EQ(found->task, (Task{"worker", 1}));
  EXPECT_EQ(found->board_address, "t-cn0117:28941");
  EXPECT_EQ(found->source, "Slurm");
  EXPECT_EQ(found->job, "Slurm job 901593 step 0");
}

TEST(FromSlurm, counts_the_tasks_of_its_own_node) {
  expect_standing(*from_slurm(Environment(kFourNodes)), 6, 7, 0, 1);
  const auto fourth =
      from_slurm(with(kFourNodes, {{"SLURM_PROCID", "3"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "1"}}));
  expect_standing(*fourth, 3, 7, 1, 2);
  EXPECT_EQ(fourth->board_address, "node01:20262");
}

TEST(FromSlurm, reads_a_step_with_a_cyclic_distribution) {
  const auto second =
      from_slurm(with(kFourNodes, {{"SLURM_PROCID", "1"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "0"}}));
  expect_standing(*second, 1, 7, 0, 2);
}

TEST(FromSlurm, takes_the_step_s_size_before_the_job_s) {
  expect_standing(*from_slurm(with(kOneNode, {{"SLURM_NTASKS", "64"}, {"SLURM_TASKS_PER_NODE", "8(x8)"}})), 1,
                  4, 1, 4);
}

TEST(FromSlurm, takes_the_older_names) {
  const auto old =
      from_slurm(without(kOneNode, {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
                                    "SLURM_STEP_NODELIST", "SLURM_NTASKS"}));
  expect_standing(*old, 1, 4, 1, 4);
  EXPECT_EQ(old->board_address, "t-cn0117:28941");
}

TEST(FromSlurm, shells_and_scripts_of_an_allocation_are_no_tasks) {
  EXPECT_FALSE(from_slurm(Environment()));
  EXPECT_FALSE(from_slurm(Environment(kBatchScript)));
  EXPECT_FALSE(from_slurm(without(kBatchScript, {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"})));
  // The interactive step of salloc, the batch step, the extern step.
  for (const char* step : {"4294967290", "4294967291", "4294967292"}) {
    EXPECT_FALSE(from_slurm(with(kBatchScript, {{"SLURM_STEP_ID", step}}))) << step;
  }
  // A shell on the login node that inherited the variables of a step from its parent, but is not a
  // task.
  EXPECT_FALSE(from_slurm(without(kOneNode, {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"})));
}

TEST(FromSlurm, incomplete_variables_are_refused) {
  expect_slurm_refused(HasSubstr("SLURM_STEP_NUM_TASKS is not"),
                       without(kOneNode, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}));
  expect_slurm_refused(AllOf(HasSubstr("SLURM_LOCALID='1'"), HasSubstr("SLURM_PROCID is not")),
                       without(kOneNode, {"SLURM_PROCID"}));
  expect_slurm_refused(HasSubstr("SLURM_LOCALID is not"), without(kOneNode, {"SLURM_LOCALID"}));
  expect_slurm_refused(HasSubstr("SLURM_NODEID is not"), without(kOneNode, {"SLURM_NODEID"}));
  expect_slurm_refused(HasSubstr("SLURM_STEP_TASKS_PER_NODE is not"),
                       without(kOneNode, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}));
  EXPECT_EQ(from_slurm(without(kOneNode, {"SLURM_STEP_NODELIST", "SLURM_NODELIST"}))->board_address, "");
}

TEST(FromSlurm, contradictions_are_refused) {
  expect_slurm_refused(AllOf(HasSubstr("SLURM_PROCID='4'"), HasSubstr("SLURM_STEP_NUM_TASKS='4'")),
                       with(kOneNode, {{"SLURM_PROCID", "4"}}));
  expect_slurm_refused(
      AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE='2(x3),1'"), HasSubstr("add up"), HasSubstr("='8'")),
      with(kFourNodes, {{"SLURM_STEP_NUM_TASKS", "8"}}));
  expect_slurm_refused(HasSubstr("SLURM_NODEID='4' is not in"), with(kFourNodes, {{"SLURM_NODEID", "4"}}));
  expect_slurm_refused(HasSubstr("SLURM_LOCALID='1' must be less than"),
                       with(kFourNodes, {{"SLURM_LOCALID", "1"}}));
  expect_slurm_refused(HasSubstr("'1(x1000000),1'"),
                       with(kFourNodes, {{"SLURM_STEP_TASKS_PER_NODE", "1(x1000000),1"}}));
}

TEST(FromSlurm, unreadable_values_are_quoted) {
  expect_slurm_refused(HasSubstr("SLURM_PROCID='one'"), with(kOneNode, {{"SLURM_PROCID", "one"}}));
  expect_slurm_refused(HasSubstr("SLURM_LOCALID='-1'"), with(kOneNode, {{"SLURM_LOCALID", "-1"}}));
  expect_slurm_refused(HasSubstr("SLURM_STEP_TASKS_PER_NODE='4(x'"),
                       with(kOneNode, {{"SLURM_STEP_TASKS_PER_NODE", "4(x"}}));
  expect_slurm_refused(AllOf(HasSubstr("SLURM_STEP_NODELIST"), HasSubstr("'node[1-'")),
                       with(kOneNode, {{"SLURM_STEP_NODELIST", "node[1-"}}));
}

}  // namespace
}  // namespace tutti::discovery
