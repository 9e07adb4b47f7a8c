#include "tools/launch/mpirun.h"

#include <unistd.h>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;

TEST(MpirunHosts, have_slots_or_one) {
  EXPECT_THAT(parse_hosts("a:2,b,10.0.0.3:4,node-7.cluster_1:1"),
              ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 1}, HostSlots{"10.0.0.3", 4},
                          HostSlots{"node-7.cluster_1", 1}));
}

TEST(MpirunHosts, the_bad_piece_is_quoted) {
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

std::vector<std::string> with_root(std::vector<std::string> words) {
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  return words;
}

TEST(MpirunCommand, starts_as_many_as_there_are_slots) {
  const MpirunJob job{{{"a", 2}, {"b", 3}}, 0, {"prog", "-n", "1"}};
  auto words = with_root({"mpirun", "-np", "5", "-H", "a:2,b:3", "--bind-to", "none"});
  words.insert(words.end(), {"prog", "-n", "1"});
  EXPECT_THAT(mpirun_command(job, Environment()), ElementsAreArray(words));
}

TEST(MpirunCommand, starts_fewer_where_fewer_are_asked_for_and_never_more) {
  MpirunJob job{{{"a", 2}, {"b", 3}}, 4, {"prog"}};
  EXPECT_EQ(mpirun_command(job, Environment())[2], "4");
  job.workers = 6;
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("'a:2,b:3' has 5 slots"), HasSubstr("6 workers")),
               [&] { mpirun_command(job, Environment()); });
}

TEST(MpirunCommand, forwards_the_variables_that_x_names) {
  const Environment environment({{"TUTTI_LANES", "8"}, {"LD_LIBRARY_PATH", "/lib"}, {"HOME", "/root"}});
  const std::vector<std::string> named = {"LD_LIBRARY_PATH", "MODE=a b=c", "EMPTY=", "TUTTI_LANES=4"};
  const ForwardedVariables forwarded = forward_variables(named, environment);
  EXPECT_EQ(forwarded.environment.variables(),
            (std::map<std::string, std::string>{{"TUTTI_LANES", "4"},
                                                {"LD_LIBRARY_PATH", "/lib"},
                                                {"MODE", "a b=c"},
                                                {"EMPTY", ""},
                                                {"HOME", "/root"}}));
  auto words = with_root({"mpirun", "-np", "1", "-H", "a:1", "--bind-to", "none"});
  for (const std::string& word : named) words.insert(words.end(), {"-x", word});
  words.emplace_back("prog");
  EXPECT_THAT(mpirun_command({{{"a", 1}}, 0, {"prog"}, forwarded.words}, environment),
              ElementsAreArray(words));
}

TEST(MpirunCommand, refuses_variables_that_cannot_be_forwarded) {
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

TEST(MpirunCommand, takes_our_variables_along_but_nobodys_identity) {
  const Environment environment({{"TUTTI_LANES", "8"},
                                 {"TUTTI_CLUSTER_SPEC", "worker|a:1"},
                                 {"TUTTI_JOB_NAME", "worker"},
                                 {"TUTTI_TASK_INDEX", "0"},
                                 {"_TUTTI_LAUNCH", "x"},
                                 {"TF_CONFIG", ""},
                                 {"HOME", "/root"}});
  const auto words = mpirun_command({{{"a", 1}}, 0, {"prog"}}, environment);
  EXPECT_THAT(words, AllOf(Contains("TUTTI_LANES"), Not(Contains("HOME")), Not(Contains("TUTTI_JOB_NAME"))));
  EXPECT_EQ(std::count(words.begin(), words.end(), "-x"), 1);
  EXPECT_EQ(mpirun_environment(environment).variables(),
            (std::map<std::string, std::string>{{"TUTTI_LANES", "8"}, {"HOME", "/root"}}));
}

}  // namespace
}  // namespace tutti
