#include "tutti/data/tables/shards.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/table_feed.h"

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

TEST(Schema, has_several_tables_of_one_file) {
  const Schema schema = {
      {"a", {"x.tsv", int64(), {"1"}}}, {"b", {"y.tsv"}}, {"c", {"x.tsv", categories(5), numbered(2, 4)}}};
  EXPECT_EQ(schema.files(), (std::vector<std::vector<size_t>>{{0, 2}, {1}}));
  EXPECT_THAT(schema["c"].columns, ElementsAre("2", "3", "4"));
}

TEST(Schema, that_makes_no_sense_is_refused) {
  const auto refused = [](std::vector<Schema::Entry> tables) {
    return error_of(ErrorKind::InvalidArgument, [&] { Schema(std::move(tables)); });
  };
  EXPECT_THAT(refused({}), HasSubstr("has no tables"));
  EXPECT_THAT(refused({{"a", {"x"}}, {"a", {"y"}}}), HasSubstr("named 'a'"));
  EXPECT_THAT(refused({{"a", {"x"}}, {"b", {"x", csv()}}}),
              HasSubstr("'a' and 'b' of the schema use the same file, x, in different formats"));
  EXPECT_THAT(refused({{"a", {"x.idx"}}, {"b", {"x.idx"}}}), HasSubstr("the same file, x.idx"));
  EXPECT_THAT(refused({{"a", {"x.idx", int64()}}}), HasSubstr("is an IDX file"));
  EXPECT_THAT(refused({{"a", {"x", dense(), {"y", "z", "y"}}}}), HasSubstr("the column 'y' twice"));
  EXPECT_THAT(refused({{"a", {"x", categories(0)}}}), HasSubstr("0 buckets; expected 1 or more"));
  EXPECT_THAT(refused({{"a", {"x", {.ids = Ids::RowNumbers, .id = "key"}}}}),
              HasSubstr("'key', but Ids::RowNumbers says that it has none"));
  EXPECT_THAT(refused({{"a", {""}}}), HasSubstr("no file"));
}

class ShardTablesTest : public ::testing::Test {
 protected:
  std::string read(const std::string& path) const { return read_file(folder_ / path); }
  const TestFolder folder_;
};

TEST_F(ShardTablesTest, keeps_headers_and_the_rows_of_an_id_together) {
  const std::string d = folder_.write("d.tsv", "ID\tx\na\t1\nb\t2\r\nc\t3\nd\t4\ne\t5");
  const std::string t = folder_.write("t.csv", "y,ID\n50,e\n10,a\n\"3\n0\",\"c\"\n20,b\n40,d\n");
  TextFormat by_id = csv();
  by_id.id = "ID";
  const auto shards = shard_tables({{d}, {t, by_id}}, folder_ / "out", {.shards = 2});
  ASSERT_EQ(shards.size(), 2);
  EXPECT_EQ(shards[0].rows, 3);
  EXPECT_EQ(shards[1].rows, 2);
  EXPECT_EQ(read("out/shard0/d.tsv"), "ID\tx\na\t1\nb\t2\nc\t3\n");
  EXPECT_EQ(read("out/shard0/t.csv"), "y,ID\n10,a\n\"3\n0\",\"c\"\n20,b\n");
  EXPECT_EQ(read("out/shard1/d.tsv"), "ID\tx\nd\t4\ne\t5\n");
  EXPECT_EQ(read("out/shard1/t.csv"), "y,ID\n50,e\n40,d\n");
  EXPECT_EQ(shards[1].bytes, read("out/shard1/d.tsv").size() + read("out/shard1/t.csv").size());
}

TEST_F(ShardTablesTest, is_what_a_feed_reads_back) {
  std::string d = "ID\tx\n";
  std::string t = "ID\ty\n";
  for (int i = 0; i < 100; ++i) {
    d += fmt::format("{}\t{}\n", i, i);
    t += fmt::format("{}\t{}\n", 99 - i, 99 - i);
  }
  folder_.write("d.tsv", d);
  folder_.write("t.tsv", t);
  for (const int64_t count : {1, 3, 7, 100}) {
    const std::string out = folder_ / fmt::format("out{}", count);
    const auto shards = shard_tables({{folder_ / "d.tsv"}, {folder_ / "t.tsv"}}, out, {.shards = count});
    for (const CutShard& shard : shards) {
      EXPECT_GE(shard.rows, 100 / count);
      EXPECT_LE(shard.rows, 100 / count + 1);
    }
    const Feed feed = table_feed(out, {{"d", {"d.tsv"}}, {"t", {"t.tsv"}}});
    ASSERT_EQ(feed.size(), 100);
    for (int64_t i = 0; i < 100; ++i) {
      const Batch batch = feed.read(std::vector<int64_t>{i});
      EXPECT_EQ(batch["d"].item<int64_t>(), i);
      EXPECT_EQ(batch["t"].item<int64_t>(), i);
    }
  }
}

// The files left by a killed process are not used.
TEST_F(ShardTablesTest, begins_anew_where_an_earlier_cut_was_broken_off) {
  const std::string d = folder_.write("d.tsv", "ID\tx\na\t1\nb\t2\n");
  std::filesystem::create_directories(folder_ / "out.unfinished/shard7");
  EXPECT_EQ(shard_tables({{d}}, folder_ / "out/", {.shards = 2}).size(), 2);
  EXPECT_FALSE(path_exists(folder_ / "out.unfinished"));
  EXPECT_FALSE(path_exists(folder_ / "out/shard7"));
  EXPECT_EQ(read("out/shard1/d.tsv"), "ID\tx\nb\t2\n");
}

TEST_F(ShardTablesTest, by_bytes_weighs_all_tables) {
  std::string d = "ID\tx\n";
  for (int i = 0; i < 40; ++i) d += fmt::format("{}\t{}\n", i, i < 10 ? std::string(300, '1') : "1");
  folder_.write("d.tsv", d);
  const auto by_rows = shard_tables({{folder_ / "d.tsv"}}, folder_ / "rows", {.shards = 2});
  EXPECT_EQ(by_rows[0].rows, 20);
  const auto by_bytes =
      shard_tables({{folder_ / "d.tsv"}}, folder_ / "bytes", {.by = ShardOptions::By::Bytes, .shards = 2});
  EXPECT_LE(by_bytes[0].rows, 6);
  // One row is as large as all others together, but every shard still gets one.
  folder_.write("one.tsv", "ID\tx\na\t" + std::string(5000, '1') + "\nb\t1\nc\t1\n");
  for (const CutShard& shard :
       shard_tables({{folder_ / "one.tsv"}}, folder_ / "one", {.by = ShardOptions::By::Bytes, .shards = 3}))
    EXPECT_EQ(shard.rows, 1);
}

TEST_F(ShardTablesTest, says_what_cannot_be_cut) {
  const std::string d = folder_.write("d.tsv", "ID\tx\na\t1\nb\t2\n");
  const std::string t = folder_.write("t.tsv", "ID\ty\na\t1\n");
  std::filesystem::create_directories(folder_ / "other");
  const std::string same = folder_.write("other/d.tsv", "ID\tx\na\t1\nb\t2\n");
  const auto refused = [&](ErrorKind kind, const std::vector<TableFile>& tables, int64_t shards,
                           const char* text) {
    expect_error(kind, HasSubstr(text), [&] { shard_tables(tables, folder_ / "out", {.shards = shards}); });
    EXPECT_FALSE(path_exists(folder_ / "out"));
  };
  refused(ErrorKind::InvalidArgument, {{d}}, 3, "2 rows, which cannot be split into 3");
  refused(ErrorKind::InvalidArgument, {{d}}, 0, "into 0");
  refused(ErrorKind::InvalidArgument, {}, 1, "no tables");
  refused(ErrorKind::InvalidArgument, {{d}, {folder_ / "t.parquet"}}, 1, "only text tables");
  refused(ErrorKind::InvalidArgument, {{d}, {same}}, 1, "the same file in a shard");
  refused(ErrorKind::DataLoss, {{d}, {t}}, 1, "no row with the ID 'b'");
  refused(ErrorKind::DataLoss, {{t}, {d}}, 1, "no row with the ID 'b'");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("exists already"),
               [&] { shard_tables({{d}}, folder_ / "other", {}); });
}

}  // namespace
}  // namespace tutti::data
