// Tests sources whose tables share files, have integers, or have no IDs.
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/test_identity.h"
#include "tutti/data/feed.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table_facts.h"
#include "tutti/data/tables/table_feed.h"
#include "tutti/data/tables/test_tables.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TextFormat kBare = {.header = false, .ids = Ids::RowNumbers};

// Two shards of ratings without header and IDs: user, item, stars.
class SharedFilesTest : public ::testing::Test {
 protected:
  SharedFilesTest() {
    for (const char* shard : {"s0", "s1"}) std::filesystem::create_directories(folder_ / shard);
    folder_.write("s0/u.data", "16777217\t7\t3.5\n2\t8\t4\n3\t9\t5\n");
    folder_.write("s1/u.data", "4\t10\t1\n5\t11\t2\n");
  }
  std::shared_ptr<const TableSource> source(const Schema& schema,
                                            const TableSourceOptions& options = {}) const {
    return table_source(shards_in(folder_.path()), schema, options);
  }
  std::string error(const Schema& schema, const TableSourceOptions& options = {}) const {
    return error_of(ErrorKind::DataLoss, [&] { source(schema, options); });
  }

  const TestFolder folder_;
  const Schema ratings_ = {{"user", {"u.data", kBare, int64(), {"1"}}},
                           {"stars", {"u.data", kBare, dense(), {"3"}}},
                           {"both", {"u.data", kBare, int64(), {"2", "1"}}}};
};

TEST_F(SharedFilesTest, become_tables_of_different_kinds) {
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1} << 20}) {
    const auto tables = source(ratings_, {.memory = memory});
    ASSERT_EQ(tables->size(), 5);
    for (int again = 0; again < 2; ++again) {
      const Batch batch = tables->read(std::vector<int64_t>{4, 0, 1, 3, 0});
      EXPECT_EQ(batch.tensors()[1].first, "stars");
      EXPECT_THAT(values_in<int64_t>(batch["user"]), ElementsAre(5, 16777217, 2, 4, 16777217));
      EXPECT_THAT(values_in<float>(batch["stars"]), ElementsAre(2, 3.5F, 4, 1, 3.5F));
      EXPECT_THAT(values_in<int64_t>(batch["both"]),
                  ElementsAre(11, 5, 7, 16777217, 8, 2, 10, 4, 7, 16777217));
    }
    EXPECT_EQ(tables->id(1), "s0/1");
    EXPECT_EQ(tables->id(4), "s1/1");
  }
}

TEST_F(SharedFilesTest, are_read_by_many_threads_at_once) {
  const auto tables = source(ratings_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 300; ++i) {
        const int64_t example = (i * (t + 1)) % 5;
        const Batch batch = tables->read(std::vector<int64_t>{example});
        EXPECT_EQ(batch["both"][0][0].item<int64_t>(), 7 + example);
        EXPECT_EQ(batch["both"][0][1].item<int64_t>(), batch["user"].item<int64_t>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharedFilesTest, may_stand_beside_files_with_other_formats_and_ids) {
  folder_.write("s0/t.csv", "\"key\",y\nc,30\na,10\nb,20\n");
  folder_.write("s1/t.csv", "\"key\",y\ne,50\nd,40\n");
  folder_.write("s0/more.tsv", "key\tz\na\t1\nb\t2\nc\t3\n");
  folder_.write("s1/more.tsv", "key\tz\nd\t4\ne\t5\n");
  std::vector<Schema::Entry> entries = ratings_.tables();
  entries.push_back({"y", {"t.csv"}});
  entries.push_back({"z", {"more.tsv"}});
  // The master table has no IDs: the first file with IDs has the same order, and others are joined to it by
  // ID.
  for (const BadRows bad : {BadRows::Error, BadRows::Skip}) {
    const Batch by_place =
        source(Schema(entries), {.bad_rows = bad})->read(std::vector<int64_t>{0, 1, 2, 3, 4});
    EXPECT_THAT(values_in<int64_t>(by_place["user"]), ElementsAre(16777217, 2, 3, 4, 5));
    EXPECT_THAT(values_in<float>(by_place["y"]), ElementsAre(30, 10, 20, 50, 40));
    EXPECT_THAT(values_in<float>(by_place["z"]), ElementsAre(3, 1, 2, 5, 4));
  }
  const auto by_id = source(Schema(entries), {.master_table = "y"});
  EXPECT_EQ(by_id->id(0), "c");
  const Batch batch = by_id->read(std::vector<int64_t>{0, 3});
  EXPECT_THAT(values_in<float>(batch["z"]), ElementsAre(3, 5));
  EXPECT_THAT(values_in<int64_t>(batch["user"]), ElementsAre(16777217, 4));
  folder_.write("s1/t.csv", "key,y\ne,50\n");
  EXPECT_THAT(
      error(Schema(entries)),
      AllOf(HasSubstr("s1: t.csv has 1 rows, but u.data has 2; u.data has no IDs, so both must have")));
}

TEST_F(SharedFilesTest, leave_out_bad_rows_for_all_their_tables) {
  folder_.write("s0/u.data", "1\t7\tx\n2\t8.5\t4\n3\t9\t5\n4\t\t1\n5\t6\t7\n");
  folder_.write("s0/t.tsv", "10\n20\n30\n40\n50x\n");
  folder_.write("s1/t.tsv", "60\n70\n");
  std::vector<Schema::Entry> entries = ratings_.tables();
  entries.push_back({"t", {"t.tsv", kBare}});
  const Schema schema(entries);
  const auto tables = source(schema, {.bad_rows = BadRows::Skip});
  ASSERT_EQ(tables->size(), 3);
  EXPECT_EQ(tables->left_out().examples, 4);
  EXPECT_THAT(tables->left_out().why, HasSubstr("s0/u.data:1: column '3' (3): 'x' is not a number"));
  const Batch batch = tables->read(std::vector<int64_t>{0, 1, 2});
  EXPECT_THAT(values_in<int64_t>(batch["user"]), ElementsAre(3, 4, 5));
  EXPECT_THAT(values_in<float>(batch["t"]), ElementsAre(30, 60, 70));
  EXPECT_EQ(tables->id(0), "s0/2");
  EXPECT_THAT(values_in<float>(source(schema, {.master_table = "t", .bad_rows = BadRows::Skip})
                                   ->read(std::vector<int64_t>{0, 1})["stars"]),
              ElementsAre(5, 1));
  folder_.write("s0/t.tsv", "10\n20\n30\n40\n");
  EXPECT_THAT(error(schema, {.bad_rows = BadRows::Skip}), HasSubstr("t.tsv has 4 rows, but u.data has 5"));
}

TEST_F(SharedFilesTest, need_the_columns_of_their_tables_in_all_shards) {
  folder_.write("s0/a.tsv", "ID\tx\tonly0\na\t1\t2\n");
  folder_.write("s1/a.tsv", "ID\tonly1\tx\nb\t1\t2\n");
  const Schema some = {{"x", {"a.tsv", int64(), {"x"}}}};
  EXPECT_THAT(values_in<int64_t>(source(some)->read(std::vector<int64_t>{0, 1})["x"]), ElementsAre(1, 2));
  EXPECT_THAT(error({{"all", {"a.tsv"}}}), HasSubstr("'only1' in the former and 'x' in the latter"));
  EXPECT_THAT(
      error({{"x", {"a.tsv", int64(), {"only0"}}}}),
      HasSubstr("s1/a.tsv:1: there is no column 'only0', which the schema names; did you mean 'only1'"));
}

TEST_F(SharedFilesTest, are_dealt_to_lanes_of_any_number_of_workers) {
  const auto users = [&](Partition partition, int rank, int world) {
    std::string cluster = "worker|";
    for (int i = 0; i < world; ++i) cluster += fmt::format("{}h:{}", i == 0 ? "" : ";", i + 1);
    RunConfig config;
    config.compute.device = "cpu";
    config.output.log_level = "off";
    const Feed feed = distributed_feed(Context(config, identity(cluster, "worker", rank)), folder_.path(),
                                       ratings_, {.partition = partition});
    std::vector<int64_t> all(static_cast<size_t>(feed.size()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return values_in<int64_t>(feed.read(all)["user"]);
  };
  const std::vector<int64_t> expected = {16777217, 2, 3, 4, 5};
  for (const Partition partition : {Partition::Size, Partition::All, Partition::Mod}) {
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(users(partition, rank, 2), expected);
  }
  EXPECT_TRUE(path_exists(folder_ / "s0/.u.data.tutti.json"));
  std::filesystem::remove(folder_ / "s1/u.data");
  folder_.write("s1/u.data", "4\t10\n5\t11\n");
  expect_error(ErrorKind::DataLoss, AllOf(HasSubstr("s1/u.data"), HasSubstr("no column '3'")),
               [&] { users(Partition::Size, 0, 1); });
}

TEST_F(SharedFilesTest, have_statistics_of_numbers_but_not_of_categories) {
  const Schema schema = {{"user", {"u.data", kBare, int64(), {"1"}}},
                         {"float", {"u.data", kBare, dense(), {"3", "2"}}},
                         {"bucket", {"u.data", kBare, categories(10), {"2"}}},
                         {"list", {"u.data", kBare, ragged(int64()), {"2"}}}};
  for (const BadRows bad : {BadRows::Error, BadRows::Skip, BadRows::Error}) {
    const auto tables = source(schema, {.bad_rows = bad});
    EXPECT_EQ(tables->statistics("user").columns.at(0).max, 16777217);
    EXPECT_EQ(tables->statistics("user").columns.at(0).min, 2);
    EXPECT_EQ(tables->statistics("float").columns.at(1).max, 11);
    EXPECT_EQ(tables->statistics("float").columns.at(0).count, 5);
    expect_error(ErrorKind::InvalidArgument, HasSubstr("'bucket' has no statistics: it contains categories"),
                 [&] { tables->statistics("bucket"); });
    expect_error(ErrorKind::InvalidArgument, HasSubstr("lists of ids"), [&] { tables->statistics("list"); });
  }
}

// Each kind of cells has separate statistics.
TEST_F(SharedFilesTest, have_facts_by_kind_and_column) {
  const std::string path = folder_.write("t.tsv", "x\ty\tname\n1\t16777217\tA\n2\t\tB\n");
  const TextFormat numbered = {.ids = Ids::RowNumbers};
  const auto statistics_of_column = [&](const TableKind& kind, const std::string& column) {
    return statistics_of(path, numbered, {kind, {column}}).columns.at(0);
  };
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(statistics_of_column(int64({.missing = 7}), "y").mean, 8388612);
    EXPECT_EQ(statistics_of_column(int64({.missing = 9}), "y").mean, 8388613);
    EXPECT_EQ(statistics_of_column(dense(), "x").mean, 1.5);
    EXPECT_EQ(statistics_of_column(int64(), "x").max, 2);
    EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { statistics_of_column(dense(), "y"); }),
                HasSubstr("16777217"));
    EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { statistics_of_column(int64(), "y"); }),
                HasSubstr("is missing"));
    EXPECT_EQ(outline_of(path, numbered).rows, 2);
    EXPECT_EQ(outline_of(path, numbered).id_column, "");
    EXPECT_THAT(outline_of(path, numbered).columns, ElementsAre("x", "y", "name"));
  }
  // The same file, read with IDs, has another outline.
  EXPECT_EQ(outline_of(path, {}).id_column, "x");
  EXPECT_THAT(outline_of(path, {}).columns, ElementsAre("y", "name"));
}

// A run that is resumed with other kinds, buckets or columns has other data.
TEST_F(SharedFilesTest, have_fingerprints_that_tell_kinds_apart) {
  const auto fingerprint = [&](const TableKind& kind, const std::vector<std::string>& columns) {
    const Feed feed = table_feed(folder_.path(), {{"x", {"u.data", kBare, kind, columns}}});
    return columns_of(feed, 1).at(0).second;
  };
  const std::string own = fingerprint(int64(), {"2"});
  EXPECT_THAT(own, HasSubstr("int64[1], 5 examples with checksum"));
  EXPECT_EQ(fingerprint(int64(), {"2"}), own);
  EXPECT_THAT(fingerprint(dense(), {"2"}), HasSubstr("float32[1], 5 examples"));
  EXPECT_NE(fingerprint(int64(), {"1"}), own);
  EXPECT_NE(fingerprint(categories(1000), {"2"}), own);
  EXPECT_NE(fingerprint(categories(1000), {"2"}), fingerprint(categories(1001), {"2"}));
  EXPECT_THAT(fingerprint(ragged(int64()), {"2", "1"}), HasSubstr("int64[2,1]"));
}

TEST_F(SharedFilesTest, can_be_mapped_and_combined) {
  for (const char* shard : {"a/s", "b/s"}) std::filesystem::create_directories(folder_ / shard);
  folder_.write("a/s/l.tsv", "ID\tids\na\t16777217 2 3\nb\t4\n");
  folder_.write("b/s/l.tsv", "ID\tids\nc\t5 6\nd\t\n");
  const Schema schema = {{"ids", {"l.tsv", ragged(int64())}}, {"id", {"l.tsv", categories(9), {"ID"}}}};
  const auto squeezed = [](Batch batch) {
    return Batch({{"ids", batch["ids"].squeeze(1)}, {"ids length", batch["ids length"]}});
  };
  const Feed feed = concat({table_feed(folder_ / "a", schema), table_feed(folder_ / "b", schema)});
  const Batch batch = feed.read(std::vector<int64_t>{3, 2, 1});
  EXPECT_THAT(values_in<int64_t>(batch["ids"]), ElementsAre(-1, -1, 5, 6, 4, -1));
  EXPECT_THAT(values_in<int64_t>(batch["id"]),
              ElementsAre(bucket_of("d", 9), bucket_of("c", 9), bucket_of("b", 9)));
  EXPECT_THAT(feed.read(std::vector<int64_t>{0, 2})["ids"].sizes(), ElementsAre(2, 1, 3));
  const Feed mapped = concat(
      {table_feed(folder_ / "a", schema).map(squeezed), table_feed(folder_ / "b", schema).map(squeezed)});
  EXPECT_THAT(values_in<int64_t>(mapped.read(std::vector<int64_t>{0, 2})["ids"]),
              ElementsAre(16777217, 2, 3, 5, 6, -1));
  const Schema floats = {{"ids", {"l.tsv", ragged()}}, {"id", {"l.tsv", categories(9), {"ID"}}}};
  folder_.write("a/s/l.tsv", "ID\tids\na\t1\n");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("their columns differ"), [&] {
    concat({table_feed(folder_ / "a", floats), table_feed(folder_ / "b", schema)});
  });
}

TEST_F(SharedFilesTest, are_cut_by_row_without_ids) {
  std::string left;
  std::string right;
  for (int i = 0; i < 50; ++i) {
    left += fmt::format("{}\t{}\n", i % 3, i);  // the first column has the same value many times
    right += fmt::format("{}\n", -i);
  }
  const std::vector<TableFile> files = {{folder_.write("left.txt", left), kBare},
                                        {folder_.write("right.txt", right), kBare}};
  for (const int64_t count : {1, 4, 50}) {
    const std::string out = folder_ / fmt::format("out{}", count);
    EXPECT_EQ(shard_tables(files, out, {.shards = count}).size(), static_cast<size_t>(count));
    const Feed feed = table_feed(
        out, {{"left", {"left.txt", kBare, int64(), {"2"}}}, {"right", {"right.txt", kBare, int64()}}});
    ASSERT_EQ(feed.size(), 50);
    for (int64_t i = 0; i < 50; ++i) {
      const Batch batch = feed.read(std::vector<int64_t>{i});
      EXPECT_EQ(batch["left"].item<int64_t>(), i);
      EXPECT_EQ(batch["right"].item<int64_t>(), -i);
    }
  }
  folder_.write("right.txt", right + "1\n");
  EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { shard_tables(files, folder_ / "more", {.shards = 2}); }),
              AllOf(HasSubstr("right.txt has 51 rows"), HasSubstr("without IDs")));
}

}  // namespace
}  // namespace tutti::data
