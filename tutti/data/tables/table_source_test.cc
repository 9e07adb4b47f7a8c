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
  std::shared_ptr<const Source> source(const TableSourceOptions& options = {}) const {
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

TEST_F(TableSourceTest, says_what_does_not_fit) {
  shard("s1", "ID\tx\na\t1\nb\t2\n", "ID,z\na,10\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/t.csv"), HasSubstr("'b'"), HasSubstr("s1/d.tsv")));
  shard("s1", "ID\tx\na\t1\n", "ID,z\na,10\nb,2\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/d.tsv"), HasSubstr("'b'"), HasSubstr("s1/t.csv")));
  shard("s1", "ID\tx\n", "ID,z\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s1/d.tsv"), HasSubstr("no rows")));
  shard("s1", "ID\tx\na\t1\n", "ID,z\na,10\n");
  shard("s2", "ID\tw\nc\t1\n", "ID,z\nc,10\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("s2/d.tsv"), HasSubstr("s1/d.tsv"), HasSubstr("'w' here, 'x' there")));
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
  const auto tables = source({.memory = 15000});  // for one of the tables
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

}  // namespace
}  // namespace tutti::data
