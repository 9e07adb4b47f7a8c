#include "tutti/data/tables/shards.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Shards, are_folders_in_the_order_of_their_numbers) {
  const TestFolder folder;
  for (const char* name : {"shard10", "shard2", "shard02", "shard1", "a", ".hidden"})
    std::filesystem::create_directory(folder / name);
  folder.write("README", "");
  std::vector<std::string> names;
  for (const std::string& path : shards_in(folder.path()))
    names.push_back(std::filesystem::path(path).filename());
  EXPECT_THAT(names, ElementsAre("a", "shard1", "shard02", "shard2", "shard10"));
}

TEST(Shards, that_are_not_there_are_an_error) {
  const TestFolder folder;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("contains no folders"),
               [&] { shards_in(folder.path()); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("nowhere"), HasSubstr("expected a folder")),
               [&] { shards_in(folder / "nowhere"); });
}

TEST(Schema, has_tables_by_name) {
  const Schema schema = {{"desc", {"descriptors.tsv"}}, {"targ", {"targets.csv"}}};
  EXPECT_EQ(schema["targ"].file, "targets.csv");
  EXPECT_EQ(schema["targ"].format.separator, ',');
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("desc, targ"), HasSubstr("did you mean 'desc'")),
               [&] { schema["decs"]; });
}

TEST(Schema, that_makes_no_sense_is_refused) {
  const auto refused = [](std::vector<Schema::Entry> tables) {
    return error_of(ErrorKind::InvalidArgument, [&] { Schema(std::move(tables)); });
  };
  EXPECT_THAT(refused({}), HasSubstr("has no tables"));
  EXPECT_THAT(refused({{"a", {"x"}}, {"a", {"y"}}}), HasSubstr("named 'a'"));
  EXPECT_THAT(refused({{"a", {"x"}}, {"b", {"x"}}}), HasSubstr("the same file, x"));
  EXPECT_THAT(refused({{"a", {""}}}), HasSubstr("no file"));
}

}  // namespace
}  // namespace tutti::data
