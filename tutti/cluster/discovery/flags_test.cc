#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RunConfig config(const std::string& cluster, const std::string& job = "",
                 std::optional<int64_t> index = std::nullopt) {
  RunConfig config;
  config.cluster.spec = cluster;
  config.cluster.job = job;
  config.cluster.task = index;
  return config;
}

template <class Matcher>
void expect_refused(const Matcher& text, const RunConfig& given) {
  expect_error(ErrorKind::InvalidArgument, text, [&] { from_flags(given); });
}

TEST(FromFlags, says_nothing_where_none_is_given) { EXPECT_FALSE(from_flags(RunConfig())); }

TEST(FromFlags, finds_the_task_in_the_cluster) {
  const auto found = from_flags(config("ps|h:2222,worker|h:2223;h:2224", "worker", 1));
  ASSERT_TRUE(found);
  expect_standing(*found, 1, 2, 1, 2);
  EXPECT_EQ(found->task, (Task{"worker", 1}));
  EXPECT_EQ(found->source, "flags");
  EXPECT_EQ(found->board_address, "h:2223");
  EXPECT_EQ(found->cluster.num_tasks("ps"), 1);
}

TEST(FromFlags, takes_json) {
  EXPECT_EQ(from_flags(config(R"({"worker": ["a:1", "b:1"]})", "worker", 1))->membership.rank, 1);
}

TEST(FromFlags, fills_in_the_job_and_the_index_where_there_is_only_one) {
  EXPECT_EQ(from_flags(config("worker|h:1"))->task, (Task{"worker", 0}));
  EXPECT_EQ(from_flags(config("worker|h:1;h:2", "", 1))->task, (Task{"worker", 1}));
  EXPECT_EQ(from_flags(config("ps|h:1,worker|h:2", "ps"))->task, (Task{"ps", 0}));
  EXPECT_EQ(from_flags(config(R"({"worker": {"5": "h:1"}})"))->task, (Task{"worker", 5}));
}

TEST(FromFlags, asks_for_what_is_missing) {
  expect_refused(AllOf(HasSubstr("--job_name"), HasSubstr("ps, worker")), config("ps|h:1,worker|h:2"));
  expect_refused(AllOf(HasSubstr("--task_index"), HasSubstr("2 tasks")), config("worker|h:1;h:2", "worker"));
  expect_refused(AllOf(HasSubstr("--task_index 1"), HasSubstr("--cluster_spec")), config("", "", 1));
  expect_refused(AllOf(HasSubstr("--job_name 'ps'"), HasSubstr("--cluster_spec")), config("", "ps", 1));
}

TEST(FromFlags, refuses_what_contradicts_the_cluster) {
  expect_refused(HasSubstr("did you mean 'worker'?"), config("ps|h:1,worker|h:2", "wroker", 0));
  expect_refused(HasSubstr("has no task 7"), config("ps|h:1,worker|h:2", "worker", 7));
  expect_refused(HasSubstr("has no task 7"), config("worker|h:2", "", 7));
  expect_refused(HasSubstr("99999999999"), config("worker|h:2", "worker", 99999999999));
  expect_refused(HasSubstr("-1"), config("worker|h:2", "worker", -1));
  expect_refused(HasSubstr("'h'"), config("worker|h", "worker", 0));
  expect_refused(HasSubstr("does not name any task"), config("{}", "worker", 0));
}

TEST(FromFlags, the_evaluator_need_not_be_in_the_cluster) {
  EXPECT_TRUE(from_flags(config("chief|h:1", "evaluator"))->is_evaluator);
  EXPECT_TRUE(from_flags(config("chief|h:1", "evaluator", 0))->is_evaluator);
}

}  // namespace
}  // namespace tutti::discovery
