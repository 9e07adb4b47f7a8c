#include "tutti/cluster/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti {
namespace {

using discovery::Variables;
using testing::HasSubstr;

// The variables of each launcher, in the order of discovery, each with a different rank.
const std::vector<std::pair<std::string, Variables>> kLaunchers = {
    {"TF_CONFIG",
     {{"TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})"}}},
    {"torchrun", {{"RANK", "2"}, {"WORLD_SIZE", "9"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}},
    {"Open MPI",
     {{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "9"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}},
    {"MPICH (PMI)",
     {{"PMI_RANK", "4"}, {"PMI_SIZE", "9"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}},
    {"Slurm",
     {{"SLURM_PROCID", "5"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_STEP_NUM_TASKS", "9"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "5"},
      {"SLURM_STEP_TASKS_PER_NODE", "1(x9)"}}},
};

Environment all_from(size_t first) {
  Variables variables;
  for (size_t i = first; i < kLaunchers.size(); ++i)
    variables.insert(kLaunchers[i].second.begin(), kLaunchers[i].second.end());
  return Environment(variables);
}

TEST(Discovery, the_first_with_anything_to_say_decides) {
  for (size_t i = 0; i < kLaunchers.size(); ++i) {
    const Identity identity = discover(RunConfig(), all_from(i));
    EXPECT_EQ(identity.source, kLaunchers[i].first);
    EXPECT_EQ(identity.membership.rank, static_cast<int>(i) + 1);
  }
}

TEST(Discovery, flags_go_before_every_launcher) {
  RunConfig config;
  config.cluster.spec = "worker|a:1;b:1";
  config.cluster.task = 0;
  const Identity identity = discover(config, all_from(0));
  EXPECT_EQ(identity.source, "flags");
  EXPECT_EQ(identity.membership.rank, 0);
}

TEST(Discovery, reads_the_text_of_a_program_in_place_of_TF_CONFIG) {
  RunConfig config;
  config.cluster.tf_config =
      R"({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}})";
  for (const Environment& environment : {Environment(), all_from(0)}) {
    const Identity identity = discover(config, environment);
    EXPECT_EQ(identity.source, "TF_CONFIG");
    discovery::expect_standing(identity, 2, 3, 0, 1);
    EXPECT_EQ(identity.cluster.address("worker", 0), "b:1");
  }
  config.cluster.spec = "worker|a:1;b:1";
  config.cluster.task = 1;
  EXPECT_EQ(discover(config, Environment()).source, "flags");
  config.cluster = {.spec = {}, .job = {}, .task = {}, .tf_config = "{"};
  expect_error(ErrorKind::InvalidArgument, HasSubstr("TF_CONFIG"), [&] { discover(config, Environment()); });
}

TEST(Discovery, pmix_is_asked_before_slurm) {
  Variables variables = kLaunchers.back().second;
  variables["PMIX_RANK"] = "4";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("PMIX_RANK='4'"),
               [&] { discover(RunConfig(), Environment(variables)); });
}

TEST(Discovery, a_launcher_that_contradicts_itself_is_not_passed_over) {
  Variables variables = all_from(3).variables();
  variables["RANK"] = "0";
  expect_error(ErrorKind::InvalidArgument, HasSubstr("WORLD_SIZE is not"),
               [&] { discover(RunConfig(), Environment(variables)); });
}

TEST(Discovery, without_any_it_is_one_process) {
  const Identity identity = discover(RunConfig(), Environment({{"HOME", "/"}, {"MASTER_ADDR", "h"}}));
  discovery::expect_standing(identity, 0, 1, 0, 1);
  EXPECT_EQ(identity.source, "one process");
  EXPECT_EQ(identity.task, Task());
  EXPECT_TRUE(identity.cluster.empty());
  EXPECT_FALSE(identity.is_evaluator);
}

TEST(Task, has_a_long_and_a_short_name) {
  const Task task{.job = "ps", .index = 3};
  EXPECT_EQ(task.name(), "/job:ps/task:3");
  EXPECT_EQ(task.short_name(), "ps/3");
}

TEST(Discover, knows_the_launch_whoever_names_the_ranks) {
  EXPECT_EQ(discover(RunConfig(), Environment()).launch, "");
  Variables variables = kLaunchers[1].second;
  variables[kLaunchVariable] = "k3y";
  variables[kSecretVariable] = "s3cret";
  EXPECT_EQ(discover(RunConfig(), Environment(variables)).launch, "k3y");
  EXPECT_EQ(discover(RunConfig(), Environment(variables)).secret, "s3cret");
}

}  // namespace
}  // namespace tutti
