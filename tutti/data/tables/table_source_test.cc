#include "tutti/data/tables/table_source.h"

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/tables/shards.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Schema kSchema = {{"desc", {"d.tsv"}}, {"targ", {"t.csv"}}};

class TableSourceTest : public ::testing::Test {
 protected:
  void shard(const std::string& name, const std::string& desc, const std::string& targ) const {
    std::filesystem::create_directories(folder_ / name);
    folder_.write(name + "/d.tsv", desc);
    folder_.write(name + "/t.csv", targ);
  }
  std::shared_ptr<const TableSource> source(const TableSourceOptions& options = {}) const {
    return table_source(shards_in(folder_.path()), kSchema, options);
  }
  std::string error() const {
    return error_of(ErrorKind::DataLoss, [&] { source(); });
  }

  const TestFolder folder_;
};

TEST_F(TableSourceTest, joins_tables_by_id_over_shards) {
  shard("s1", "ID\tx\ty\na\t1\t2\nb\t3\t4\n", "ID,z\nb,30\na,10\n");
  shard("s2", "ID\tx\ty\nc\t5\t6\n", "ID,z\nc,50\n");
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1} << 20}) {
    const auto tables = source({.memory = memory});
    ASSERT_EQ(tables->size(), 3);
    const std::vector<int64_t> examples = {2, 0, 1, 0};
    for (int again = 0; again < 2; ++again) {
      const Batch batch = tables->read(examples);
      EXPECT_TRUE(
          at::equal(batch["desc"], at::tensor({5.F, 6.F, 1.F, 2.F, 3.F, 4.F, 1.F, 2.F}).reshape({4, 2})));
      EXPECT_TRUE(at::equal(batch["targ"], at::tensor({50.F, 10.F, 30.F, 10.F}).reshape({4, 1})));
    }
  }
  const Batch by_target = source({.master_table = "targ"})->read(std::vector<int64_t>{0});
  EXPECT_EQ(by_target["targ"].item<float>(), 30);
  EXPECT_EQ(by_target["desc"][0][0].item<float>(), 3);
}

TEST_F(TableSourceTest, tells_how_many_bytes_are_read) {
  shard("s1", "ID\tx\ty\na\t1\t2\nb\t3\t4\n", "ID,z\nb,30\na,10\n");
  shard("s2", "ID\tx\ty\nc\t5\t6\n", "ID,z\nc,50\n");
  std::vector<int64_t> told;
  const OnProgress note = [&](int64_t done, int64_t all) {
    EXPECT_EQ(all, 19 + 15 + 13 + 10);
    told.push_back(done);
  };
  source({.on_progress = note});
  EXPECT_THAT(told, testing::ElementsAre(19, 34, 47, 57));
  const auto known = source({.rows = {2, 1}, .on_progress = note});
  EXPECT_EQ(told.size(), 4U) << "nothing is opened yet";
  int64_t last = 0;
  known->open({{2, 3}}, [&](int64_t done, int64_t all) {
    EXPECT_EQ(all, 13 + 10);
    last = done;
  });
  EXPECT_EQ(last, 13 + 10);
}

TEST_F(TableSourceTest, says_what_does_not_fit) {
  shard("s1", "ID\tx\na\t1\nb\t2\n", "ID,z\na,10\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/t.csv"), HasSubstr("'b'"), HasSubstr("s1/d.tsv")));
  shard("s1", "ID\tx\na\t1\n", "ID,z\na,10\nb,2\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/d.tsv"), HasSubstr("'b'"), HasSubstr("s1/t.csv")));
  shard("s1", "ID\tx\n", "ID,z\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/d.tsv"), HasSubstr("no rows")));
  shard("s1", "ID\tx\na\t1\n", "ID,z\na,10\n");
  shard("s2", "ID\tw\nc\t1\n", "ID,z\nc,10\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s2/d.tsv"), HasSubstr("s1/d.tsv"),
                             HasSubstr("'w' in the former and 'x' in the latter")));
  std::filesystem::remove(folder_ / "s2/t.csv");
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("s2"), HasSubstr("t.csv"), HasSubstr("'targ'")),
               [&] { source(); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("did you mean 'desc'"),
               [&] { source({.master_table = "dest"}); });
}

TEST_F(TableSourceTest, is_read_by_many_threads_at_once) {
  std::string desc = "ID\tx\ty\n";
  std::string targ = "ID,z\n";
  constexpr int64_t kRows = 2000;
  for (int64_t i = 0; i < kRows; ++i) {
    desc += fmt::format("{}\t{}\t{}\n", i, i, -i);
    targ += fmt::format("{},{}\n", kRows - 1 - i, i);
  }
  shard("s", desc, targ);
  const auto tables = source({.memory = 15000});  // enough for one of the tables
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kRows; ++i) {
        const int64_t example = (i * (2 * t + 1)) % kRows;
        const Batch batch = tables->read(std::vector<int64_t>{example});
        EXPECT_EQ(batch["desc"][0][1].item<float>(), static_cast<float>(-example));
        EXPECT_EQ(batch["targ"].item<float>(), static_cast<float>(kRows - 1 - example));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Tables of other kinds than dense, in two shards.
class TableKindsTest : public ::testing::Test {
 protected:
  TableKindsTest() {
    for (const char* shard : {"s1", "s2"}) std::filesystem::create_directories(folder_ / shard);
    folder_.write("s1/d.tsv", "ID\tx\na\t1\nb\t2\n");
    folder_.write("s2/d.tsv", "ID\tx\nc\t3\n");
    folder_.write("s1/l.tsv", "ID\tp\tq\nb\t[1, 2,3]\t7\na\t\t5;6\n");
    folder_.write("s2/l.tsv", "ID\tp\tq\nc\t4 NA\tNA\n");
  }
  Batch read(const TableKind& kind, const std::vector<int64_t>& examples) const {
    const Schema schema = {{"d", {"d.tsv"}}, {"l", {"l.tsv", kind}}};
    return table_source(shards_in(folder_.path()), schema, {})->read(examples);
  }
  std::string error(const TableKind& kind) const {
    return error_of(ErrorKind::DataLoss, [&] { read(kind, {0, 1, 2}); });
  }
  static void expect_equal(const torch::Tensor& found, const std::vector<float>& expected,
                           const std::vector<int64_t>& shape) {
    EXPECT_EQ(found.sizes().vec(), shape);
    EXPECT_TRUE(at::equal(found.nan_to_num(-1).flatten(), at::tensor(expected)));
  }

  const TestFolder folder_;
};

TEST_F(TableKindsTest, ragged_is_as_long_as_the_longest_of_the_batch) {
  const Batch batch = read(ragged(), {2, 0, 1});
  expect_equal(batch["l"], {4, -1, -1, -1, -1, -1, -1, -1, -1, 5, 6, -1, 1, 2, 3, 7, -1, -1}, {3, 2, 3});
  EXPECT_TRUE(at::equal(batch["l length"], at::tensor({2, 1, 0, 2, 3, 1}, at::kLong).reshape({3, 2})));
  EXPECT_EQ(read(ragged(), {0})["l"].size(2), 2);
  EXPECT_EQ(batch["d"].flatten()[1].item<float>(), 1);
}

TEST_F(TableKindsTest, padded_has_one_length_for_all) {
  expect_equal(read(padded(4), {0})["l"], {-1, -1, -1, -1, 5, 6, -1, -1}, {1, 2, 4});
  EXPECT_THAT(error(padded(2)), AllOf(HasSubstr("s1/l.tsv:2"), HasSubstr("ID 'b'"), HasSubstr("column 'p'"),
                                      HasSubstr("3 numbers; the maximum is 2")));
}

TEST_F(TableKindsTest, indices_are_ones_in_a_sparse_matrix) {
  folder_.write("s2/l.tsv", "ID\tp\tq\nc\t4 4 0\tNA\n");
  const Batch batch = read(indices(8), {2, 1, 0});
  EXPECT_TRUE(batch["l"].is_sparse());
  EXPECT_TRUE(at::equal(batch["l"].to_dense(),
                        at::tensor({1.F, 0.F, 0.F, 0.F, 1.F, 0.F, 0.F, 0.F, 0.F, 1.F, 1.F, 1.F,
                                    0.F, 0.F, 0.F, 1.F, 0.F, 0.F, 0.F, 0.F, 0.F, 1.F, 1.F, 0.F})
                            .reshape({3, 8})));
  EXPECT_THAT(error(indices(7)), HasSubstr("7 is not an index from 0 to 6"));
  folder_.write("s2/l.tsv", "ID\tp\tq\nc\t4.5\t1\n");
  EXPECT_THAT(error(indices(8)), HasSubstr("'4.5' is not a whole number"));
}

TEST_F(TableKindsTest, of_lists_may_have_no_columns) {
  folder_.write("s1/l.tsv", "ID\nb\na\n");
  folder_.write("s2/l.tsv", "ID\nc\n");
  EXPECT_EQ(read(ragged(), {0, 2})["l"].sizes().vec(), (std::vector<int64_t>{2, 0, 0}));
  EXPECT_EQ(read(indices(5), {0, 2})["l"].sizes().vec(), (std::vector<int64_t>{2, 5}));
}

TEST_F(TableKindsTest, say_what_is_no_list) {
  for (const char* cell : {"1,", "[1", "1]", "1,,2", "1 a", "[1 2]3"}) {
    folder_.write("s2/l.tsv", fmt::format("ID\tp\tq\nc\t{}\t1\n", cell));
    EXPECT_THAT(error(ragged()),
                AllOf(HasSubstr("s2/l.tsv:2"), HasSubstr("ID 'c'"), HasSubstr("column 'p' (2)")))
        << cell;
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("has size 0"), [&] { read(padded(0), {0}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("the maximum is"),
               [&] { read(indices(int64_t{1} << 41), {0}); });
}

TEST_F(TableKindsTest, idx_has_the_rows_of_the_master_in_its_order) {
  const std::string header("\0\0\x08\x02\0\0\0\x02\0\0\0\x03", 12);
  folder_.write("s1/i.idx", header + "\x01\x02\x03\x04\x05\x06");
  folder_.write("s2/i.idx", std::string("\0\0\x08\x02\0\0\0\x01\0\0\0\x03", 12) + "\x07\x08\x09");
  const Schema schema = {{"d", {"d.tsv"}}, {"i", {"i.idx"}}};
  const auto tables = table_source(shards_in(folder_.path()), schema, {});
  const Batch batch = tables->read(std::vector<int64_t>{2, 1});
  EXPECT_EQ(batch["i"].scalar_type(), at::kByte);
  EXPECT_TRUE(at::equal(batch["i"], at::tensor({7, 8, 9, 4, 5, 6}, at::kByte).reshape({2, 3})));
  EXPECT_EQ(tables->statistics("i").columns.at(2).max, 9);
  const auto by_images = table_source(shards_in(folder_.path()), schema, {.master_table = "i"});
  EXPECT_EQ(by_images->id(2), "s2/0");
  EXPECT_EQ(by_images->read(std::vector<int64_t>{2})["d"].item<float>(), 3);
  folder_.write("s2/i.idx", header + "\x01\x02\x03\x04\x05\x06");
  expect_error(ErrorKind::DataLoss, AllOf(HasSubstr("i.idx has 2 rows"), HasSubstr("d.tsv has 1")),
               [&] { table_source(shards_in(folder_.path()), schema, {}); });
}

TEST_F(TableSourceTest, leaves_out_what_is_wrong_where_it_is_told_to) {
  shard("s1", "ID\tx\na\t1\nb\ttext\nc\t3\n\t9\nd\t4\na\t11\ne\t5\t5\nf\t6\n",
        "ID,z\nf,60\nd,40\nc,\na,10\nb,20\nd,41\ng,70\n");
  shard("s2", "ID\tx\nh\t8\n", "ID,z\nh,80\n");
  const auto tables = source({.bad_rows = BadRows::Skip});
  ASSERT_EQ(tables->size(), 5);
  const Batch batch = tables->read(std::vector<int64_t>{0, 1, 2, 3, 4});
  EXPECT_TRUE(at::equal(batch["desc"].flatten(), at::tensor({1.F, 3.F, 4.F, 6.F, 8.F})));
  EXPECT_TRUE(at::equal(batch["targ"].nan_to_num(-1).flatten(), at::tensor({10.F, -1.F, 40.F, 60.F, 80.F})));
  for (const auto& [example, id] : {std::pair(0, "a"), {1, "c"}, {2, "d"}, {3, "f"}, {4, "h"}})
    EXPECT_EQ(tables->id(example), id);
  EXPECT_EQ(tables->left_out().examples, 4);  // d.tsv has 8 rows
  EXPECT_THAT(tables->left_out().why, AllOf(HasSubstr("s1/d.tsv:3"), HasSubstr("'text' is not a number")));
  EXPECT_EQ(tables->statistics("desc").columns.at(0).max, 8);
  EXPECT_THAT(tables->rows_of_shards(), ::testing::ElementsAre(4, 1));
  EXPECT_EQ(source({.bad_rows = BadRows::Skip})->left_out().examples, 4);
}

TEST_F(TableSourceTest, leaves_out_ids_that_are_in_one_table_only_where_it_is_told_to) {
  shard("s1", "ID\tx\na\t1\n", "ID,z\nb,60\na,40\n");
  const auto tables = source({.bad_rows = BadRows::Skip});
  EXPECT_EQ(tables->size(), 1);
  EXPECT_EQ(tables->left_out().examples, 1);
  EXPECT_THAT(tables->left_out().why, HasSubstr("in one table only"));
  shard("s1", "ID\tx\na\t1\n", "ID,z\nb,60\n");
  expect_error(ErrorKind::DataLoss, HasSubstr("no rows"), [&] { source({.bad_rows = BadRows::Skip}); });
}

TEST_F(TableSourceTest, refuses_an_id_in_two_shards) {
  shard("s1", "ID\tx\na\t1\nb\t1\n", "ID,z\na,60\nb,1\n");
  shard("s2", "ID\tx\nc\t1\nb\t1\n", "ID,z\nc,60\nb,1\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("the ID 'b'"), HasSubstr("s1/d.tsv"), HasSubstr("s2/d.tsv")));
}

}  // namespace
}  // namespace tutti::data
