#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"
#include "tutti/cluster/discovery/discovery.h"
#include "tutti/cluster/discovery/test_launched.h"

namespace tutti::discovery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::optional<Identity> found_in(const std::string& text) { return from_tf_config(text); }

// Returns the configuration of one task, as a training operator writes it.
std::string config_of(const std::string& task) {
  return R"({"cluster": {"chief": ["job-chief-0.ns.svc:2222"], "ps": ["job-ps-0.ns.svc:2222", "job-ps-1.ns.svc:2222"],
             "worker": ["job-worker-0.ns.svc:2222", "job-worker-1.ns.svc:2222"]},
             "task": )" +
         task + R"(, "environment": "cloud"})";
}

template <class Matcher>
void expect_tf_config_refused(const Matcher& text, const std::string& config) {
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("TF_CONFIG"), text), [&] { found_in(config); });
}

TEST(FromTfConfig, says_nothing_where_it_holds_nothing) {
  for (const char* text :
       {"", "{}", R"({"cluster": {}})", R"({"cluster": null, "task": {}})", R"({"model_dir": "x"})"}) {
    EXPECT_FALSE(found_in(text)) << text;
  }
}

TEST(FromTfConfig, ranks_the_chief_first_then_the_workers) {
  const auto chief = found_in(config_of(R"({"type": "chief", "index": 0})"));
  ASSERT_TRUE(chief);
  expect_standing(*chief, 0, 3, 0, 1);
  EXPECT_EQ(chief->board_address, "job-chief-0.ns.svc:2222");
  EXPECT_EQ(chief->source, "TF_CONFIG");
  expect_standing(*found_in(config_of(R"({"type": "worker", "index": 1})")), 2, 3, 0, 1);
}

TEST(FromTfConfig, knows_the_chief_under_its_older_name) {
  const auto worker = found_in(
      R"({"cluster": {"worker": ["a:1"], "master": ["b:1"]}, "task": {"type": "worker", "index": 0}})");
  expect_standing(*worker, 1, 2, 0, 1);
}

TEST(FromTfConfig, without_a_chief_worker_0_leads) {
  const std::string cluster =
      R"({"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": )";
  expect_standing(*found_in(cluster + "0}}"), 0, 2, 0, 2);
  expect_standing(*found_in(cluster + "1}}"), 1, 2, 1, 2);
}

TEST(FromTfConfig, a_server_is_no_worker) {
  const auto server = found_in(config_of(R"({"type": "ps", "index": 1})"));
  EXPECT_EQ(server->membership.rank, 1);
  EXPECT_EQ(server->membership.world, 3);
  EXPECT_FALSE(server->is_chief);
}

TEST(FromTfConfig, the_evaluator_stands_outside) {
  const auto evaluator = found_in(config_of(R"({"type": "evaluator", "index": 0})"));
  EXPECT_TRUE(evaluator->is_evaluator);
  EXPECT_FALSE(evaluator->is_chief);
  EXPECT_TRUE(evaluator->cluster.empty());
  EXPECT_EQ(evaluator->membership.world, 1);
  EXPECT_TRUE(found_in(R"({"task": {"type": "evaluator", "index": 0}})")->is_evaluator);
}

TEST(FromTfConfig, takes_an_index_that_is_written_as_text) {
  EXPECT_EQ(found_in(config_of(R"({"type": "worker", "index": "1"})"))->task, (Task{"worker", 1}));
}

TEST(FromTfConfig, takes_a_cluster_of_some_tasks) {
  const auto worker = found_in(
      R"({"cluster": {"chief": ["c:1"], "worker": {"1": "w:1"}}, "task": {"type": "worker", "index": 1}})");
  expect_standing(*worker, 2, 3, 0, 1);
}

TEST(FromTfConfig, a_task_without_a_cluster_is_alone) {
  const auto alone = found_in(R"({"task": {"type": "worker", "index": 0}})");
  expect_standing(*alone, 0, 1, 0, 1);
  EXPECT_TRUE(alone->cluster.empty());
  expect_tf_config_refused(HasSubstr("worker/1"), R"({"task": {"type": "worker", "index": 1}})");
  expect_tf_config_refused(HasSubstr("ps/0"), R"({"task": {"type": "ps", "index": 0}})");
}

// Each process of the job would train alone, and end with success.
TEST(FromTfConfig, a_task_whose_cluster_is_misspelt_is_not_alone) {
  const std::string addresses = R"({"worker": ["a:1", "b:1"]})";
  const std::string task = R"({"type": "worker", "index": 0})";
  for (const char* cluster : {"clutser", "Cluster", "clusters", "cluster_spec", ""}) {
    expect_tf_config_refused(HasSubstr(fmt::format("unknown key \"{}\"", cluster)),
                             fmt::format(R"({{"{}": {}, "task": {}}})", cluster, addresses, task));
  }
  expect_tf_config_refused(HasSubstr("did you mean 'cluster'?"), R"({"clutser": {}, "task": )" + task + "}");
  expect_tf_config_refused(HasSubstr("did you mean 'task'?"), R"({"taks": {"type": "worker", "index": 1}})");
  expect_tf_config_refused(HasSubstr("unknown key \"worker\""), addresses);
  expect_tf_config_refused(HasSubstr("did you mean 'evaluator'?"),
                           R"({"task": {"type": "evalutor", "index": 0}})");
  expect_tf_config_refused(HasSubstr("unknown key \"tsak\"; did you mean 'task'?"),
                           R"({"cluster": )" + addresses + R"(, "tsak": )" + task + "}");
  const std::string known = R"({"environment": "cloud", "model_dir": "x", "task": )" + task + "}";
  expect_standing(*found_in(known), 0, 1, 0, 1);
}

// The tasks of such a job would be workers, which wait for each other.
TEST(FromTfConfig, a_misspelt_job_is_refused) {
  const auto with_job = [](const char* job) {
    return fmt::format(
        R"({{"cluster": {{"worker": ["a:1"], "{}": ["b:1"]}}, "task": {{"type": "worker", "index": 0}}}})",
        job);
  };
  expect_tf_config_refused(HasSubstr("a job 'sp'; did you mean 'ps'?"), with_job("sp"));
  expect_tf_config_refused(HasSubstr("did you mean 'chief'?"), with_job("cheif"));
  expect_tf_config_refused(HasSubstr("did you mean 'worker'?"), with_job("wokrer"));
  for (const char* free : {"gpu", "worker2", "worker_", "workers", "stream", "pc"})
    EXPECT_EQ(found_in(with_job(free))->membership.world, 2);
}

TEST(FromTfConfig, there_is_one_chief_at_most) {
  expect_tf_config_refused(
      HasSubstr("2 tasks in the job 'chief'"),
      R"({"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}})");
  expect_tf_config_refused(
      HasSubstr("both a chief and a master"),
      R"({"cluster": {"chief": ["a:1"], "master": ["b:1"]}, "task": {"type": "chief", "index": 0}})");
}

TEST(FromTfConfig, mistakes_are_quoted) {
  expect_tf_config_refused(HasSubstr("line 1"), R"({"cluster": {"worker": ["a:1")");
  expect_tf_config_refused(HasSubstr("a list"), "[]");
  expect_tf_config_refused(HasSubstr("\"cluster\" is a list"), R"({"cluster": []})");
  expect_tf_config_refused(HasSubstr("\"task\" is a string"),
                           R"({"cluster": {"worker": ["a:1"]}, "task": "worker"})");
  expect_tf_config_refused(HasSubstr("no \"type\""), R"({"cluster": {"worker": ["a:1"]}})");
  expect_tf_config_refused(HasSubstr("no \"index\""), config_of(R"({"type": "worker"})"));
  expect_tf_config_refused(HasSubstr("5 is not a job name"), config_of(R"({"type": 5, "index": 0})"));
  expect_tf_config_refused(HasSubstr("-1"), config_of(R"({"type": "worker", "index": -1})"));
  expect_tf_config_refused(HasSubstr("\"x\""), config_of(R"({"type": "worker", "index": "x"})"));
  expect_tf_config_refused(HasSubstr("0.5"), config_of(R"({"type": "worker", "index": 0.5})"));
  expect_tf_config_refused(HasSubstr("no task 2"), config_of(R"({"type": "worker", "index": 2})"));
  expect_tf_config_refused(HasSubstr("did you mean 'worker'?"),
                           config_of(R"({"type": "wroker", "index": 0})"));
  expect_tf_config_refused(HasSubstr("'a'"),
                           R"({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}})");
  expect_tf_config_refused(HasSubstr("occurs twice"), R"({"task": {}, "task": {}})");
}

TEST(FromTfConfig, two_tasks_with_one_address_are_refused) {
  expect_tf_config_refused(
      HasSubstr("the same address"),
      R"({"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}})");
}

}  // namespace
}  // namespace tutti::discovery
