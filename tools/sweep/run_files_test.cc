#include "tools/sweep/run_files.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/test_folder.h"

namespace tutti::run_files_test {
namespace {

using testing::HasSubstr;

TEST(SweepLog, ends_with_its_last_lines) {
  const TestFolder folder;
  EXPECT_EQ(last_lines(folder / "none"), "");
  EXPECT_EQ(last_lines(folder.write("empty", "")), "");
  EXPECT_EQ(last_lines(folder.write("short", "one\ntwo")), "\n  | one\n  | two");
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += std::to_string(i) + "\n";
  const std::string end = last_lines(folder.write("long", many));
  EXPECT_TRUE(end.ends_with("\n  | 9998\n  | 9999"));
  EXPECT_EQ(std::count(end.begin(), end.end(), '\n'), 20);
}

TEST(SweepConfiguration, is_found_among_other_lines) {
  EXPECT_EQ(find_configuration("a warning\n{\n  \"steps\": 8,\n  \"rate\": 0.5\n}\n")->dump(),
            R"({"steps":8,"rate":0.5})");
  for (const char* none : {"", "{}", "{\n", "}\n{", "[1]\n"}) EXPECT_FALSE(find_configuration(none)) << none;
}

TEST(SweepConfiguration, is_that_of_the_first_task_of_a_launcher) {
  EXPECT_EQ(
      find_configuration("[worker/1] {\n[worker/0] {\n[worker/0]   \"steps\": 7\n[worker/1]   \"steps\": 8\n"
                         "[worker/0] }\n[worker/1] }\n")
          ->dump(),
      R"({"steps":8})");
}

// mpirun writes lines like this, since it gives each rank a terminal.
TEST(SweepConfiguration, is_found_where_the_lines_of_several_ranks_are_mixed) {
  EXPECT_EQ(find_configuration("{\n{\n  \"steps\": 8,\n  \"rate\": 1\n  \"steps\": 8,\n}\n  \"rate\": 1\n}\n")
                ->dump(),
            R"({"steps":8,"rate":1})");
}

TEST(SweepReport, says_what_is_wrong_with_it) {
  const TestFolder folder;
  EXPECT_THAT(find_stop(folder / "none", 0).problem, HasSubstr("tutti::run"));
  EXPECT_THAT(find_stop(folder.write("damaged", "{"), 0).problem, HasSubstr("cannot be read"));
  const FoundStop found =
      find_stop(folder.write("report", R"({"steps": 3, "complete": false, "weights_sha256": ""})"), 5);
  EXPECT_EQ(found.stop->steps, 3);
  EXPECT_EQ(found.stop->stop_after, 5);
  EXPECT_THAT(found.problem, HasSubstr("not complete after step 3"));
}

}  // namespace
}  // namespace tutti::run_files_test
