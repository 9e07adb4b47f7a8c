#include "tutti/cluster/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/test_identity.h"

namespace tutti {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> names(const std::vector<Task>& tasks) {
  std::vector<std::string> names;
  for (const Task& task : tasks) names.push_back(task.short_name());
  return names;
}

TEST(Roles, the_chief_ranks_first_then_the_workers) {
  const auto cluster = ClusterSpec::parse("worker|a:1;b:1,ps|c:1,chief|d:1");
  EXPECT_THAT(names(workers_of(cluster)), ElementsAre("chief/0", "worker/0", "worker/1"));
  EXPECT_THAT(names(servers_of(cluster)), ElementsAre("ps/0"));
  EXPECT_TRUE(has_servers(cluster));
  EXPECT_FALSE(has_servers(cluster.without("ps")));
}

TEST(Roles, jobs_of_any_name_work_but_servers_and_the_evaluator) {
  const auto cluster =
      ClusterSpec::parse("worker_|a:1,parameter_server|b:1;b:2,evaluator|c:1,worker|d:1,master|e:1");
  EXPECT_THAT(names(workers_of(cluster)), ElementsAre("master/0", "worker_/0", "worker/0"));
  EXPECT_THAT(names(servers_of(cluster)), ElementsAre("parameter_server/0", "parameter_server/1"));
  EXPECT_THAT(workers_of(ClusterSpec()), IsEmpty());
}

TEST(Roles, a_worker_stands_among_the_workers_and_those_of_its_host) {
  const std::string cluster = "ps|a:9,chief|a:1,worker|b:1;A:2;b:2";
  const auto second = identity(cluster, "worker", 1);
  EXPECT_EQ(second.membership.rank, 2);
  EXPECT_EQ(second.membership.world, 4);
  EXPECT_EQ(second.membership.local_rank, 1);
  EXPECT_EQ(second.membership.local_world, 2);
  EXPECT_FALSE(second.is_chief);
  EXPECT_EQ(second.board_address, "a:1");
  EXPECT_EQ(second.source, "test");
  const auto chief = identity(cluster, "chief", 0);
  EXPECT_EQ(chief.membership.rank, 0);
  EXPECT_TRUE(chief.is_chief);
  EXPECT_EQ(identity(cluster, "worker", 2).membership.local_rank, 1);
}

TEST(Roles, without_a_chief_worker_0_is_it) {
  EXPECT_TRUE(identity("worker|a:1;a:2", "worker", 0).is_chief);
  EXPECT_FALSE(identity("worker|a:1;a:2", "worker", 1).is_chief);
}

TEST(Roles, a_server_stands_outside_the_row) {
  const auto server = identity("ps|a:1;b:1;a:2,worker|a:3;b:3", "ps", 2);
  EXPECT_EQ(server.membership.rank, 2);
  EXPECT_EQ(server.membership.world, 2);
  EXPECT_EQ(server.membership.local_rank, 1);
  EXPECT_EQ(server.membership.local_world, 2);
  EXPECT_FALSE(server.is_chief);
  EXPECT_FALSE(server.is_evaluator);
}

TEST(Roles, a_cluster_of_servers_alone_has_no_worker) {
  const auto server = identity("ps|a:1", "ps", 0);
  EXPECT_EQ(server.membership.world, 0);
  EXPECT_EQ(server.board_address, "");
}

TEST(Roles, the_evaluator_stands_alone) {
  for (const char* cluster : {"chief|a:1,worker|b:1", "chief|a:1,evaluator|c:1", ""}) {
    const auto evaluator = identity(cluster, "evaluator", 0);
    EXPECT_TRUE(evaluator.is_evaluator);
    EXPECT_FALSE(evaluator.is_chief);
    EXPECT_TRUE(evaluator.cluster.empty());
    EXPECT_EQ(evaluator.membership.rank, 0);
    EXPECT_EQ(evaluator.membership.world, 1);
  }
  EXPECT_FALSE(identity("chief|a:1,evaluator|c:1", "chief", 0).cluster.has_job("evaluator"));
}

TEST(Roles, gaps_count_as_tasks_that_were_not_named) {
  const auto third = identity(R"({"worker": {"2": "a:1"}, "ps": ["p:1"]})", "worker", 2);
  EXPECT_EQ(third.membership.rank, 2);
  EXPECT_EQ(third.membership.world, 3);
  EXPECT_EQ(third.membership.local_rank, 0);
  EXPECT_EQ(third.membership.local_world, 1);
  EXPECT_EQ(third.board_address, "");
}

TEST(Roles, a_port_that_is_chosen_later_is_no_meeting_place) {
  EXPECT_EQ(identity("worker|a:0;a:0", "worker", 1).board_address, "");
  EXPECT_EQ(identity("worker|a:0;a:0", "worker", 1).membership.local_rank, 1);
}

TEST(Roles, a_task_that_is_not_there_is_refused) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no job 'chief'"),
               [] { identity("worker|a:1", "chief", 0); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no task 1"),
               [] { identity("worker|a:1", "worker", 1); });
}

}  // namespace
}  // namespace tutti
