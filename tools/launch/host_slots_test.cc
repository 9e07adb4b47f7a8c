#include "tools/launch/host_slots.h"

#include <map>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/this_host.h"

namespace tutti::host_slots_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(HostSlots, have_slots_or_one) {
  EXPECT_THAT(parse_hosts("a:2,b,10.0.0.3:4,node-7.cluster_1:1"),
              ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 1}, HostSlots{"10.0.0.3", 4},
                          HostSlots{"node-7.cluster_1", 1}));
}

TEST(HostSlots, the_bad_piece_is_quoted) {
  const std::vector<std::pair<std::string, std::string>> bad = {{"", "an empty entry"},
                                                                {"a:2,", "an empty entry"},
                                                                {",a", "an empty entry"},
                                                                {"a:2,,b", "an empty entry"},
                                                                {"a:0", "'0' in 'a:0'"},
                                                                {"a:-1", "'-1'"},
                                                                {"a:two", "'two'"},
                                                                {"a:", "'' in 'a:'"},
                                                                {"a:1.5", "'1.5'"},
                                                                {"a:4097", "'4097'"},
                                                                {"a:99999999999999", "'999"},
                                                                {":2", "'' is not a host name"},
                                                                {"b,a:2:3", "'a:2:3'"},
                                                                {"[::1]:2", "'[::1]:2'"},
                                                                {"a b:2", "'a b'"},
                                                                {"-x:2", "'-x'"},
                                                                {"$(reboot):2", "'$(reboot)'"},
                                                                {"a;b:2", "'a;b'"},
                                                                {"b:1, a:2", "' a'"},
                                                                {"a:2,b:1,a:3", "'a' twice"},
                                                                {"a:+2x", "'+2x'"}};
  for (const auto& [text, piece] : bad) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("-H"), HasSubstr(piece)),
                 [&text = text] { parse_hosts(text); });
  }
}

TEST(HostSlots, are_filled_in_order) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_EQ(fill_slots(hosts, 0), hosts);
  EXPECT_THAT(fill_slots(hosts, 1), ElementsAre(HostSlots{"a", 1}));
  EXPECT_THAT(fill_slots(hosts, 4), ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 2}));
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("'a:2,b:3,c:1' has 6 slots"), HasSubstr("7 workers")),
               [&] { fill_slots(hosts, 7); });
}

TEST(ThisHost, has_several_names) {
  for (const std::string& name : {std::string("localhost"), std::string("127.0.0.1"), host_name()})
    EXPECT_TRUE(is_this_host(name)) << name;
  for (const char* name : {"127.0.0.2", "no-such-host.invalid"}) EXPECT_FALSE(is_this_host(name)) << name;
}

TEST(ForwardedVariables, are_those_that_x_names) {
  const Environment environment(
      {{"TUTTI_LANES", "8"}, {"LD_LIBRARY_PATH", "/lib"}, {"HOME", "/root"}, {"TUTTI_RSH", "rsh"}});
  const ForwardedVariables forwarded =
      forward_variables({"LD_LIBRARY_PATH", "MODE=a b=c", "EMPTY=", "TUTTI_LANES=4"}, environment);
  std::map<std::string, std::string> expected = {
      {"TUTTI_LANES", "4"}, {"LD_LIBRARY_PATH", "/lib"}, {"MODE", "a b=c"}, {"EMPTY", ""}};
  EXPECT_EQ(forwarded.named, expected);
  EXPECT_EQ(variables_to_forward(forwarded), expected);
  expected["HOME"] = "/root";
  EXPECT_EQ(forwarded.environment.variables(), expected);
}

TEST(ForwardedVariables, are_refused_if_each_process_has_its_own) {
  const Environment environment({{"A", "1"}, {"TUTTI_TASK_INDEX", "0"}});
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"NOWHERE"}, "-x NOWHERE: the variable is not set here"},
      {{"A", "A=2"}, "-x A: the variable is named twice"},
      {{"TUTTI_TASK_INDEX"}, "says which task a process is"},
      {{"TF_CONFIG={}"}, "says which task a process is"},
      {{"=x"}, "'' is not the name of a variable"},
      {{"1A=x"}, "'1A' is not the name of a variable"},
      {{"A,B"}, "'A,B' is not the name of a variable"}};
  for (const auto& [words, text] : bad) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text),
                 [&words = words, &environment] { forward_variables(words, environment); });
  }
}

TEST(ForwardedVariables, are_ours_too_but_nobodys_identity) {
  const Environment environment({{"TUTTI_LANES", "8"},
                                 {"TUTTI_CLUSTER_SPEC", "worker|a:1"},
                                 {"TUTTI_JOB_NAME", "worker"},
                                 {"TUTTI_TASK_INDEX", "0"},
                                 {"_TUTTI_LAUNCH", "x"},
                                 {"_TUTTI_SECRET", "x"},
                                 {"TF_CONFIG", ""},
                                 {"HOME", "/root"}});
  EXPECT_EQ(variables_to_forward({{}, environment}),
            (std::map<std::string, std::string>{{"TUTTI_LANES", "8"}}));
  EXPECT_EQ(without_identity(environment).variables(),
            (std::map<std::string, std::string>{{"TUTTI_LANES", "8"}, {"HOME", "/root"}}));
}

TEST(Quoted, words_are_read_back_by_a_shell) {
  EXPECT_EQ(quoted("/opt/a-b_c.d"), "/opt/a-b_c.d");
  EXPECT_EQ(quoted("a b"), "'a b'");
  EXPECT_EQ(quoted("it's $(x)"), "'it'\\''s $(x)'");
  EXPECT_EQ(quoted(""), "''");
}

}  // namespace
}  // namespace tutti::host_slots_test
