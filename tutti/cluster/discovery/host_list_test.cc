#include "tutti/cluster/discovery/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::discovery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HostList, expands_ranges_and_lists) {
  EXPECT_THAT(expand_host_list("node[01-03,7],gpu[1-2]x"),
              ElementsAre("node01", "node02", "node03", "node7", "gpu1x", "gpu2x"));
  EXPECT_THAT(expand_host_list("a"), ElementsAre("a"));
  EXPECT_THAT(expand_host_list("t-cn0117,login.example.org"), ElementsAre("t-cn0117", "login.example.org"));
  EXPECT_THAT(expand_host_list("[1-2]"), ElementsAre("1", "2"));
  EXPECT_THAT(expand_host_list("n[5]"), ElementsAre("n5"));
}

TEST(HostList, keeps_the_zeros_of_a_range) {
  EXPECT_THAT(expand_host_list("n[08-11]"), ElementsAre("n08", "n09", "n10", "n11"));
  EXPECT_THAT(expand_host_list("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_host_list("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(expand_host_list("n[000]"), ElementsAre("n000"));
}

TEST(HostList, the_last_bracket_counts_fastest) {
  EXPECT_THAT(expand_host_list("r[1-2]n[01-02]-ib"),
              ElementsAre("r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"));
}

TEST(HostList, quotes_what_is_wrong) {
  for (const char* text : {"", ",", "a,", ",a", "n[", "n]", "n[1", "n1]", "n[[1]]", "n[]", "n[1,]", "n[3-1]",
                           "n[a-b]", "n[1-]", "n[-1]", "n[1-2-3]", "n[1 -2]", "n[99999999999999999999]"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("host list '" + std::string(text) + "'"),
                 [&] { expand_host_list(text); });
  }
}

TEST(HostList, does_not_fill_the_memory_for_a_mistyped_range) {
  for (const char* text :
       {"n[0-999999999999999]", "n[0-999999]m[0-9]", "n[1-999999,1-999999]", "n[1-600000],m[1-600000]"}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("too many hosts"), [&] { expand_host_list(text); });
  }
  EXPECT_EQ(expand_host_list("n[1-100000]").size(), 100000U);
}

TEST(TasksPerNode, reads_runs) {
  EXPECT_THAT(*parse_tasks_per_node("2(x3),1"), ElementsAre(TasksPerNode{2, 3}, TasksPerNode{1, 1}));
  EXPECT_THAT(*parse_tasks_per_node("4"), ElementsAre(TasksPerNode{4, 1}));
}

TEST(TasksPerNode, is_nothing_where_the_text_is_no_such_list) {
  for (const char* text : {"", ",", "2,", "0", "2(x0)", "2(x", "2(x)", "2(3)", "2x3", "(x3)", "-2", "2(x3)1",
                           "a", " 2", "99999999999", "2(x99999999999)"}) {
    EXPECT_FALSE(parse_tasks_per_node(text)) << text;
  }
}

}  // namespace
}  // namespace tutti::discovery
