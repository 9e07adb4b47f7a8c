#include "tools/launch/nodes.h"

#include <map>
#include <string>

#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/base/test_errors.h"

namespace tutti::nodes_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

// The second of three tasks of srun, each on a node of its own.
const Variables kSrun = {{"SLURM_JOB_ID", "7"},         {"SLURM_STEP_ID", "3"},
                         {"SLURM_PROCID", "1"},         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},         {"SLURM_STEP_NODELIST", "node[01-03]"},
                         {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}};

void refused(const NodeFlags& flags, const std::string& text, const Variables& variables = {}) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr(text),
               [&] { find_nodes(flags, Environment(variables)); });
}

TEST(Nodes, are_none_on_one_host) {
  EXPECT_FALSE(find_nodes({}, Environment()));
  EXPECT_FALSE(find_nodes({.count = 1}, Environment(kSrun)));
  EXPECT_FALSE(find_nodes({.count = 1}, Environment(Variables{{"JOB_COMPLETION_INDEX", "2"}})));
  refused({.rank = 1}, "--node-rank 1 is not one of the 1 nodes");
}

TEST(Nodes, are_those_of_the_flags) {
  const auto nodes = find_nodes({.count = 3, .rank = 2, .rendezvous = "a:4000"}, Environment(kSrun));
  EXPECT_EQ(nodes->count, 3);
  EXPECT_EQ(nodes->rank, 2);
  EXPECT_THAT(nodes->addresses, ElementsAre("a:4000"));
  EXPECT_THAT(find_nodes({.count = 2, .rendezvous = "a:1,b:2"}, Environment())->addresses,
              ElementsAre("a:1", "b:2"));
  refused({.count = 2}, "--nnodes 2 needs --rendezvous HOST:PORT");
  refused({.count = 2, .rendezvous = "a:1,b:0"}, "--rendezvous b:0 needs a port other than 0");
  refused({.count = 3, .rendezvous = "a:1,b:1"}, "--rendezvous has 2 addresses for 3 nodes");
}

TEST(Nodes, are_counted_by_the_pods_of_an_indexed_job) {
  const Variables pod = {{"JOB_COMPLETION_INDEX", "2"}};
  EXPECT_EQ(find_nodes({.count = 3, .rendezvous = "a:1"}, Environment(pod))->rank, 2);
  EXPECT_EQ(find_nodes({.count = 3, .rank = 1, .rendezvous = "a:1"}, Environment(pod))->rank, 1);
  refused({.count = 2, .rendezvous = "a:1"}, "--node-rank 2 is not one of the 2 nodes", pod);
  refused({.count = 2, .rendezvous = "a:1"}, "JOB_COMPLETION_INDEX='x' is not the number of a pod",
          {{"JOB_COMPLETION_INDEX", "x"}});
}

TEST(Nodes, are_the_tasks_of_srun) {
  const auto nodes = find_nodes({}, Environment(kSrun));
  EXPECT_EQ(nodes->count, 3);
  EXPECT_EQ(nodes->rank, 1);
  EXPECT_THAT(nodes->addresses, ElementsAre("node01:20262", "node02:20262", "node03:20262"));
  EXPECT_THAT(find_nodes({.rendezvous = "a:1"}, Environment(kSrun))->addresses, ElementsAre("a:1"));
  Variables variables = kSrun;
  variables["SLURM_STEP_NODELIST"] = "node01";
  variables["SLURM_STEP_TASKS_PER_NODE"] = "3";
  variables["SLURM_NODEID"] = "0";
  EXPECT_THAT(find_nodes({}, Environment(variables))->addresses, ElementsAre("node01:20262"));
  variables.erase("SLURM_JOB_ID");
  refused({}, "give --rendezvous HOST:PORT", variables);
}

JobHosts hosts_in(const std::string& cluster, int index) {
  return *JobHosts::from(
      Environment({{"TF_CONFIG", R"({"cluster": )" + cluster + R"(, "task": {"type": "worker", "index": )" +
                                     std::to_string(index) + "}}"}}));
}

TEST(Nodes, are_the_hosts_of_TF_CONFIG_in_the_order_of_ranks) {
  const auto nodes = nodes_of(hosts_in(R"({"worker": ["a:1", "b:2"], "chief": ["c:3"]})", 1));
  EXPECT_EQ(nodes->count, 3);
  EXPECT_EQ(nodes->rank, 2);
  EXPECT_THAT(nodes->addresses, ElementsAre("c:3", "a:1", "b:2"));
  EXPECT_FALSE(nodes_of(hosts_in(R"({"worker": ["a:1"]})", 0)));
  expect_error(ErrorKind::InvalidArgument, HasSubstr("not possible with the servers of TF_CONFIG"),
               [] { nodes_of(hosts_in(R"({"worker": ["a:1"], "ps": ["b:2"]})", 0)); });
}

}  // namespace
}  // namespace tutti::nodes_test
