#include "tutti/cluster/cluster_spec.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <class Matcher>
void expect_refused(const Matcher& text, const std::string& spec) {
  expect_error(ErrorKind::InvalidArgument, text, [&] { ClusterSpec::parse(spec); });
}

TEST(ClusterSpec, reads_jobs_and_tasks_in_their_order) {
  const auto spec = ClusterSpec::parse("ps|h:2222,worker|h:2223;g:2224,Job_2|[::1]:1");
  EXPECT_THAT(spec.jobs(), ElementsAre("ps", "worker", "Job_2"));
  EXPECT_EQ(spec.num_tasks("worker"), 2);
  EXPECT_THAT(spec.task_indices("worker"), ElementsAre(0, 1));
  EXPECT_EQ(spec.address("worker", 1), "g:2224");
  EXPECT_EQ(spec.address("Job_2", 0), "[::1]:1");
  EXPECT_TRUE(spec.has_job("ps"));
  EXPECT_FALSE(spec.has_job("PS"));
}

TEST(ClusterSpec, reads_the_names_of_old_programs) {
  const auto spec = ClusterSpec::parse("master|localhost:2222,worker|localhost:2223,worker_|localhost:2224");
  EXPECT_THAT(spec.jobs(), ElementsAre("master", "worker", "worker_"));
}

TEST(ClusterSpec, may_be_empty) {
  for (const char* text : {"", "{}", " {} "}) EXPECT_TRUE(ClusterSpec::parse(text).empty());
  EXPECT_THAT(ClusterSpec().jobs(), IsEmpty());
  EXPECT_EQ(ClusterSpec().to_string(), "");
  EXPECT_EQ(ClusterSpec().to_json(), "{}");
}

TEST(ClusterSpec, reads_dense_and_sparse_json) {
  const auto spec = ClusterSpec::parse(R"({"worker": {"1": "a:1", "7": "b:1"}, "ps": ["c:1", "d:1"]})");
  EXPECT_THAT(spec.jobs(), ElementsAre("worker", "ps"));
  EXPECT_THAT(spec.task_indices("worker"), ElementsAre(1, 7));
  EXPECT_EQ(spec.num_tasks("worker"), 2);
  EXPECT_EQ(spec.address("worker", 7), "b:1");
  EXPECT_EQ(spec.address("ps", 1), "d:1");
}

TEST(ClusterSpec, reads_back_what_it_writes) {
  for (const char* text :
       {"ps|h:1,worker|h:2;g:0;h:0", R"({"worker":{"1":"a:1","7":"b:1"},"ps":["c:1"]})", "", "a|[::1]:1"}) {
    const auto spec = ClusterSpec::parse(text);
    EXPECT_EQ(spec.to_string(), text);
    EXPECT_EQ(ClusterSpec::parse(spec.to_string()), spec);
    EXPECT_EQ(ClusterSpec::parse(spec.to_json()), spec);
  }
  EXPECT_EQ(ClusterSpec::parse("b|h:1,a|h:2").to_json(), R"({"b":["h:1"],"a":["h:2"]})");
  EXPECT_EQ(ClusterSpec::parse(R"({"w":{"1":"a:1","0":"b:1"}})").to_string(), "w|b:1;a:1");
}

TEST(ClusterSpec, one_address_has_one_task) {
  expect_refused(AllOf(HasSubstr("/job:ps/task:0"), HasSubstr("/job:worker/task:1"), HasSubstr("'H:02222'")),
                 "ps|h:2222,worker|h:1;H:02222");
  expect_refused(HasSubstr("the same address"), R"({"w": {"3": "h:1", "4": "h:1"}})");
}

TEST(ClusterSpec, port_zero_is_chosen_later_and_may_repeat) {
  EXPECT_EQ(ClusterSpec::parse("ps|h:0,worker|h:0;h:0").num_tasks("worker"), 2);
}

TEST(ClusterSpec, the_bad_piece_is_quoted) {
  expect_refused(HasSubstr("'h:2222'"), "h:2222");
  expect_refused(HasSubstr("'worker'"), "ps|h:1,worker");
  expect_refused(HasSubstr("'worker|h:1|h:2'"), "worker|h:1|h:2");
  expect_refused(HasSubstr("job 'ps' has no task"), "ps|,worker|h:1");
  expect_refused(HasSubstr("'' is not a job name"), "|h:1");
  expect_refused(HasSubstr("'2ps' is not a job name"), "2ps|h:1");
  expect_refused(HasSubstr("'_ps' is not a job name"), "_ps|h:1");
  expect_refused(HasSubstr("' worker' is not a job name"), "ps|h:1, worker|h:2");
  expect_refused(HasSubstr("'a-b' is not a job name"), "a-b|h:1");
  expect_refused(AllOf(HasSubstr("task 1"), HasSubstr("'ps|h:1;'")), "ps|h:1;");
  expect_refused(HasSubstr("task 0"), "ps|;h:1");
  expect_refused(HasSubstr("''"), "ps|h:1,");
  expect_refused(HasSubstr("''"), ",");
  expect_refused(HasSubstr("'ps' is named twice"), "ps|h:1,worker|h:2,ps|h:3");
  expect_refused(HasSubstr("'h:99999'"), "ps|h:99999");
  expect_refused(HasSubstr("'h'"), "ps|h");
}

TEST(ClusterSpec, bad_json_is_quoted) {
  expect_refused(HasSubstr("line 1"), R"({"ps": ["h:1")");
  expect_refused(HasSubstr("occurs twice"), R"({"ps": ["h:1"], "ps": ["h:2"]})");
  expect_refused(HasSubstr("'ps' is a string"), R"({"ps": "h:1"})");
  expect_refused(HasSubstr("'ps': 5 is not an address"), R"({"ps": ["h:1", 5]})");
  expect_refused(HasSubstr("'ps' has no task"), R"({"ps": []})");
  expect_refused(HasSubstr("'ps' has no task"), R"({"ps": {}})");
  expect_refused(HasSubstr("'x' is not a task index"), R"({"ps": {"x": "h:1"}})");
  expect_refused(HasSubstr("'-1' is not a task index"), R"({"ps": {"-1": "h:1"}})");
  expect_refused(HasSubstr("'2000000000' is not a task index"), R"({"ps": {"2000000000": "h:1"}})");
  expect_refused(HasSubstr("'ps' has task 01 twice"), R"({"ps": {"1": "h:1", "01": "h:2"}})");
  expect_refused(HasSubstr("'worker' is not a task index"), R"({"cluster": {"worker": ["h:1"]}})");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("a list; expected an object"),
               [] { ClusterSpec::from_json("[1]"); });
}

TEST(ClusterSpec, an_unknown_job_or_task_lists_those_that_are_there) {
  const auto spec = ClusterSpec::parse("ps|h:1,worker|h:2;h:3");
  expect_error(
      ErrorKind::InvalidArgument,
      AllOf(HasSubstr("no job 'wroker'"), HasSubstr("ps, worker"), HasSubstr("did you mean 'worker'?")),
      [&] { spec.num_tasks("wroker"); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("'worker' has no task 2"), HasSubstr("0 to 1")),
               [&] { spec.address("worker", 2); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has no task -1"), [&] { spec.address("ps", -1); });
  const auto sparse = ClusterSpec::parse(R"({"worker": {"1": "a:1", "7": "b:1"}})");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("it has 1, 7"), [&] { sparse.address("worker", 0); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("known jobs: none"), [] { ClusterSpec().tasks("ps"); });
}

TEST(ClusterSpec, checks_what_is_built_by_hand) {
  EXPECT_EQ(ClusterSpec({{"a", {{0, "h:1"}}}}).to_string(), "a|h:1");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("-1"), [] { ClusterSpec({{"a", {{-1, "h:1"}}}}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'x'"), [] { ClusterSpec({{"a", {{0, "x"}}}}); });
}

TEST(ClusterSpec, a_job_can_be_left_out) {
  const auto spec = ClusterSpec::parse("ps|h:1,worker|h:2");
  EXPECT_EQ(spec.without("ps").to_string(), "worker|h:2");
  EXPECT_EQ(spec.without("none"), spec);
}

TEST(ClusterSpec, holds_thousands_of_tasks) {
  std::string text = "worker|";
  for (int i = 0; i < 10000; ++i) text += (i > 0 ? ";host" : "host") + std::to_string(i) + ":2222";
  const auto spec = ClusterSpec::parse(text);
  EXPECT_EQ(spec.num_tasks("worker"), 10000);
  EXPECT_EQ(spec.address("worker", 9999), "host9999:2222");
  EXPECT_EQ(spec.to_string(), text);
}

}  // namespace
}  // namespace tutti
