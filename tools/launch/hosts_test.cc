#include "tools/launch/hosts.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_errors.h"

namespace tutti::hosts_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::optional<JobHosts> hosts_from(const std::string& cluster, const std::string& type, int index) {
  const std::string task = R"({"type": ")" + type + R"(", "index": )" + std::to_string(index) + "}";
  return JobHosts::from(Environment({{"TF_CONFIG", R"({"cluster": )" + cluster + R"(, "task": )" + task +
                                                       R"(, "environment": "cloud"})"}}));
}

std::string spread(const JobHosts& hosts, const std::vector<int>& workers) {
  return hosts.spread(workers).cluster.to_string();
}

const std::string kThree = R"({"worker": ["a:2222", "b:2222", "c:3333"]})";

TEST(JobHosts, are_none_where_TF_CONFIG_names_none) {
  EXPECT_FALSE(JobHosts::from(Environment()));
  for (const std::string text :
       {"", "{}", R"({"cluster": {}})", R"({"task": {"type": "worker", "index": 0}})"}) {
    EXPECT_FALSE(JobHosts::from(Environment({{"TF_CONFIG", text}}))) << text;
  }
}

TEST(JobHosts, stand_in_the_order_of_ranks) {
  const auto hosts =
      hosts_from(R"({"ps": ["p:1"], "worker": ["a:1", "b:1"], "chief": ["c:1"]})", "worker", 1);
  EXPECT_THAT(hosts->row(),
              ElementsAre(Task{"chief", 0}, Task{"worker", 0}, Task{"worker", 1}, Task{"ps", 0}));
  EXPECT_EQ(hosts->own_index(), 2U);
  EXPECT_EQ(hosts->name_of(2), "worker/1 (b:1)");
  EXPECT_EQ(hosts->address_of(0), "c:1");
  EXPECT_TRUE(hosts->is_server(3));
  EXPECT_FALSE(hosts->is_server(0));
}

TEST(JobHosts, may_differ_in_their_workers) {
  const auto hosts = hosts_from(kThree, "worker", 0);
  EXPECT_EQ(spread(*hosts, {2, 1, 3}), "worker|a:2222;a:2223;b:2222;c:3333;c:3334;c:3335");
  EXPECT_EQ(spread(*hosts, {1, 1, 1}), "worker|a:2222;b:2222;c:3333");
  const auto tasks = hosts->spread({2, 1, 3}).tasks;
  ASSERT_EQ(tasks.size(), 3U);
  EXPECT_THAT(tasks[0], ElementsAre(Task{"worker", 0}, Task{"worker", 1}));
  EXPECT_THAT(tasks[1], ElementsAre(Task{"worker", 2}));
  EXPECT_THAT(tasks[2], ElementsAre(Task{"worker", 3}, Task{"worker", 4}, Task{"worker", 5}));
}

TEST(JobHosts, the_chiefs_other_workers_come_next_in_rank) {
  const auto hosts = hosts_from(R"({"ps": ["p:1"], "worker": ["a:1"], "chief": ["c:1"]})", "chief", 0);
  const auto spread = hosts->spread({2, 2, 1});
  EXPECT_EQ(spread.cluster.to_string(), "chief|c:1,worker|c:2;a:1;a:2,ps|p:1");
  EXPECT_THAT(spread.tasks[0], ElementsAre(Task{"chief", 0}, Task{"worker", 0}));
  EXPECT_THAT(spread.tasks[1], ElementsAre(Task{"worker", 1}, Task{"worker", 2}));
  EXPECT_THAT(spread.tasks[2], ElementsAre(Task{"ps", 0}));
  const auto alone = hosts_from(R"({"master": ["m:1"]})", "master", 0);
  EXPECT_EQ(alone->spread({2}).cluster.to_string(), "master|m:1,worker|m:2");
}

TEST(JobHosts, skips_ports_of_other_tasks) {
  const auto one_machine = hosts_from(R"({"worker": ["h:1", "h:2", "H:3"], "ps": ["h:5"]})", "worker", 0);
  EXPECT_EQ(spread(*one_machine, {2, 2, 1, 1}), "worker|h:1;h:4;h:2;h:6;H:3,ps|h:5");
}

TEST(JobHosts, ports_that_the_tasks_choose_stay_open) {
  const auto hosts = hosts_from(R"({"worker": ["a:1", "b:0"]})", "worker", 0);
  EXPECT_EQ(spread(*hosts, {1, 2}), "worker|a:1;b:0;b:0");
}

TEST(JobHosts, with_IPv6_addresses_keep_their_brackets) {
  EXPECT_EQ(spread(*hosts_from(R"({"worker": ["[::1]:7"]})", "worker", 0), {2}), "worker|[::1]:7;[::1]:8");
}

TEST(JobHosts, a_port_beyond_the_last_is_refused) {
  const auto hosts = hosts_from(R"({"worker": ["a:65534"]})", "worker", 0);
  EXPECT_EQ(spread(*hosts, {2}), "worker|a:65534;a:65535");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'a:65535'"), [&] { hosts->spread({3}); });
}

TEST(JobHosts, all_launchers_make_the_same_cluster) {
  const auto first = hosts_from(kThree, "worker", 0);
  const auto third = hosts_from(kThree, "worker", 2);
  EXPECT_EQ(spread(*first, {2, 1, 3}), spread(*third, {2, 1, 3}));
  EXPECT_EQ(first->fingerprint(), third->fingerprint());
  const auto other_order = R"({"ps": ["p:1"], "worker": ["a:1"]})";
  EXPECT_EQ(hosts_from(R"({"worker": ["a:1"], "ps": ["p:1"]})", "worker", 0)->fingerprint(),
            hosts_from(other_order, "ps", 0)->fingerprint());
  EXPECT_NE(first->fingerprint(),
            hosts_from(R"({"worker": ["a:2222", "b:2222", "c:3334"]})", "worker", 0)->fingerprint());
}

TEST(JobHosts, TF_CONFIG_says_the_same_of_the_larger_cluster) {
  const auto hosts = hosts_from(kThree, "worker", 1);
  const auto larger = hosts->spread({1, 2, 1});
  const auto config = nlohmann::json::parse(hosts->config_for(larger.cluster, larger.tasks[1][1]));
  EXPECT_EQ(config, nlohmann::json::parse(
                        R"({"cluster": {"worker": ["a:2222", "b:2222", "b:2223", "c:3333"]},
                            "task": {"type": "worker", "index": 2}, "environment": "cloud"})"));
}

TEST(JobHosts, an_evaluator_stands_outside) {
  const auto hosts = hosts_from(kThree, "evaluator", 0);
  ASSERT_TRUE(hosts);
  EXPECT_FALSE(hosts->own_index());
}

TEST(JobHosts, that_are_told_badly_are_refused) {
  const auto refused = [](const std::string& text, const std::string& cluster) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("TF_CONFIG"), HasSubstr(text)),
                 [&] { hosts_from(cluster, "worker", 1); });
  };
  refused("lacks worker/0", R"({"worker": {"1": "b:1"}})");
  refused("'a:0', needs a port", R"({"worker": ["a:0", "b:1"]})");
  refused("no task 1", R"({"worker": ["a:1"]})");
  refused("'b'", R"({"worker": ["a:1", "b"]})");
  refused("the same address", R"({"worker": ["a:1", "A:1"]})");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no worker"),
               [] { hosts_from(R"({"ps": ["a:1"]})", "ps", 0); });
}

}  // namespace
}  // namespace tutti::hosts_test
