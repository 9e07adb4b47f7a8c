#include "tutti/data/tables/table_feed.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/cluster/test_identity.h"
#include "tutti/lanes/lanes.h"
#include "tutti/lanes/sampler.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Schema kDescAndTarg = {{"desc", {"d.tsv"}}, {"targ", {"t.tsv"}}};

// Shards of 5, 1, 3, 7 and 4 rows; example i holds the number i.
class DistributedFeedTest : public ::testing::Test {
 protected:
  DistributedFeedTest() {
    int64_t next = 0;
    for (const int64_t rows : {5, 1, 3, 7, 4}) {
      const std::string shard = fmt::format("s{}", shards_++);
      std::filesystem::create_directories(folder_ / shard);
      std::string d = "ID\tx\n";
      std::string t = "ID\ty\n";
      for (int64_t i = 0; i < rows; ++i, ++next) {
        d += fmt::format("id{}\t{}\n", next, next);
        t = t.substr(0, 5) + fmt::format("id{}\t{}\n", next, -next) + t.substr(5);
      }
      folder_.write(shard + "/d.tsv", d);
      folder_.write(shard + "/t.tsv", t);
    }
  }
  Feed feed(Partition partition, int rank, int world) const {
    std::string cluster = "worker|";
    for (int i = 0; i < world; ++i) cluster += fmt::format("{}h:{}", i == 0 ? "" : ";", i + 1);
    RunConfig config;
    config.compute.device = "cpu";
    config.output.log_level = "off";
    if (skip_bad_rows_) config.data.bad_rows = "skip";
    return distributed_feed(Context(config, identity(cluster, "worker", rank)), folder_.path(), kDescAndTarg,
                            {.partition = partition});
  }
  // Returns the examples that a lane sees at a step.
  static std::vector<int64_t> seen(const Feed& feed, int64_t lanes, int64_t step, int64_t lane) {
    const Sampler sampler(feed.size(), {.lanes = lanes, .batch = 2, .ranges = feed.ranges(lanes)});
    std::vector<int64_t> examples;
    sampler.examples(step, lane, examples);
    if (examples.empty()) return {};
    const Batch batch = feed.read(examples);
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < batch.size(); ++i) {
      numbers.push_back(batch["desc"][i].item<int64_t>());
      EXPECT_EQ(batch["targ"][i].item<int64_t>(), -numbers.back());
    }
    return numbers;
  }
  static int64_t steps(const Feed& feed, int64_t lanes) {
    return Sampler(feed.size(), {.lanes = lanes, .batch = 2, .ranges = feed.ranges(lanes)}).steps_per_epoch();
  }
  // Returns all examples that the lanes of one worker see in an epoch.
  static std::multiset<int64_t> epoch(const Feed& feed, int rank, int world, int64_t lanes) {
    std::multiset<int64_t> all;
    const LaneRange own = lanes_of(rank, world, lanes);
    for (int64_t step = 0; step < steps(feed, lanes); ++step) {
      for (int64_t lane = own.begin; lane < own.end; ++lane) {
        for (const int64_t number : seen(feed, lanes, step, lane)) all.insert(number);
      }
    }
    return all;
  }
  void expect_every_example_once(Partition partition, int world, int64_t lanes) const {
    std::multiset<int64_t> all;
    for (int rank = 0; rank < world; ++rank)
      all.merge(epoch(feed(partition, rank, world), rank, world, lanes));
    EXPECT_EQ(all.size(), 20);
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 20);
  }

  const TestFolder folder_;
  int shards_ = 0;
  bool skip_bad_rows_ = false;
};

TEST_F(DistributedFeedTest, gives_every_example_to_one_lane_once_an_epoch) {
  for (const Partition partition : {Partition::Mod, Partition::Size, Partition::All}) {
    for (const int world : {1, 2, 3, 5}) {
      for (const int64_t lanes : {5, 7, 30}) expect_every_example_once(partition, world, lanes);
    }
  }
}

TEST_F(DistributedFeedTest, by_size_or_whole_has_lanes_see_the_same_however_many_workers_there_are) {
  for (const Partition partition : {Partition::Size, Partition::All}) {
    const Feed alone = feed(partition, 0, 1);
    for (const int world : {2, 3, 4}) {
      for (int rank = 0; rank < world; ++rank) {
        const Feed one = feed(partition, rank, world);
        for (int64_t step = 0; step < 3 * steps(alone, 4); ++step) {
          for (int64_t lane = 0; lane < 4; ++lane)
            ASSERT_EQ(seen(one, 4, step, lane), seen(alone, 4, step, lane));
        }
      }
    }
  }
}

TEST_F(DistributedFeedTest, whole_is_what_table_feed_gives) {
  const Feed whole = table_feed(folder_.path(), kDescAndTarg);
  for (int64_t step = 0; step < 10; ++step)
    EXPECT_EQ(seen(feed(Partition::All, 1, 2), 2, step, 1), seen(whole, 2, step, 1));
}

TEST_F(DistributedFeedTest, by_size_balances_rows) {
  const Feed one = feed(Partition::Size, 0, 2);
  EXPECT_THAT(one.ranges(3), ElementsAre(ExampleRange{0, 7}, ExampleRange{7, 14}, ExampleRange{14, 20}));
}

TEST_F(DistributedFeedTest, by_mod_reads_its_own_shards_and_opens_no_other) {
  for (const int own : {0, 1}) {
    const Feed one = feed(Partition::Mod, own, 2);
    std::multiset<int64_t> expected;
    for (const auto& [begin, end] : own == 0 ? std::vector<std::pair<int, int>>{{0, 5}, {6, 9}, {16, 20}}
                                             : std::vector<std::pair<int, int>>{{5, 6}, {9, 16}}) {
      for (int number = begin; number < end; ++number) expected.insert(number);
    }
    // Since the rows are counted already, the other shards are not needed any more.
    const std::string other = fmt::format("s{}/t.tsv", 1 - own);
    std::filesystem::rename(folder_ / other, folder_ / "away");
    EXPECT_EQ(epoch(one, own, 2, 4), expected);
    std::filesystem::rename(folder_ / "away", folder_ / other);
  }
}

TEST_F(DistributedFeedTest, by_mod_says_where_shards_or_lanes_are_too_few) {
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("5 shards for 6 workers"), HasSubstr("'size'"), HasSubstr("'all'")),
               [&] { feed(Partition::Mod, 2, 6); });
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("3 workers"), HasSubstr("--lanes to 3")),
               [&] { feed(Partition::Mod, 0, 3).ranges(2); });
  EXPECT_EQ(feed(Partition::Size, 5, 6).size(), 20);
  EXPECT_EQ(feed(Partition::All, 5, 6).size(), 20);
}

TEST_F(DistributedFeedTest, leaves_out_bad_rows_where_it_is_told_to) {
  folder_.write("s2/d.tsv", "ID\tx\nid6\t6\nid7\tbad\nid8\t8\n");
  expect_error(ErrorKind::DataLoss, HasSubstr("s2/d.tsv:3"),
               [&] { epoch(feed(Partition::All, 0, 1), 0, 1, 1); });
  skip_bad_rows_ = true;
  for (const Partition partition : {Partition::Mod, Partition::Size, Partition::All}) {
    std::multiset<int64_t> all;
    for (int rank = 0; rank < 2; ++rank) all.merge(epoch(feed(partition, rank, 2), rank, 2, 3));
    EXPECT_EQ(all.size(), 19);
    EXPECT_EQ(all.count(7), 0);
    EXPECT_EQ(feed(partition, 0, 2).left_out().examples, 1);
  }
}

TEST_F(DistributedFeedTest, sees_headers_that_differ_and_empty_shards_that_it_never_opens) {
  for (const Partition partition : {Partition::Mod, Partition::Size}) {
    folder_.write("s3/t.tsv", "ID\tz\nid9\t1\n");
    expect_error(ErrorKind::DataLoss,
                 AllOf(HasSubstr("s3/t.tsv"), HasSubstr("'z' in the former and 'y' in the latter")),
                 [&] { feed(partition, 0, 5); });
    folder_.write("s3/t.tsv", "ID\ty\n");
    expect_error(ErrorKind::DataLoss, AllOf(HasSubstr("s3/t.tsv"), HasSubstr("no rows")),
                 [&] { feed(partition, 0, 5); });
  }
}

TEST_F(DistributedFeedTest, one_worker_sees_an_id_in_two_shards_however_they_are_dealt) {
  folder_.write("s2/d.tsv", "ID\tx\nid6\t6\nid0\t7\nid8\t8\n");
  folder_.write("s2/t.tsv", "ID\ty\nid6\t6\nid0\t7\nid8\t8\n");
  for (const Partition partition : {Partition::Mod, Partition::Size, Partition::All}) {
    expect_error(ErrorKind::DataLoss,
                 AllOf(HasSubstr("the ID 'id0' occurs in"), HasSubstr("s0/d.tsv"), HasSubstr("s2/d.tsv")),
                 [&] { feed(partition, 0, 1); });
  }
  // Worker 0 of 2 has both rows by 'mod' (shards 0, 2 and 4), worker 1 has neither.
  expect_error(ErrorKind::DataLoss, HasSubstr("'id0'"), [&] { feed(Partition::Mod, 0, 2); });
  EXPECT_NO_THROW(feed(Partition::Mod, 1, 2));
}

TEST_F(DistributedFeedTest, takes_the_first_examples_but_not_by_mod) {
  const Feed few = feed(Partition::Size, 0, 2).take(7);
  EXPECT_THAT(few.ranges(3), ElementsAre(ExampleRange{0, 3}, ExampleRange{3, 5}, ExampleRange{5, 7}));
  EXPECT_EQ(epoch(few, 0, 1, 2).size(), 7);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("take()"),
               [&] { feed(Partition::Mod, 0, 2).take(7).ranges(2); });
  EXPECT_EQ(feed(Partition::Mod, 0, 2).take(70).ranges(2).size(), 2);
}

TEST_F(DistributedFeedTest, finds_the_same_statistics_however_shards_are_dealt) {
  const TableStatistics all = feed(Partition::All, 0, 1).statistics("desc");
  for (const int world : {1, 2, 3, 5}) {
    const TableStatistics by_mod = feed(Partition::Mod, 0, world).statistics("desc");
    EXPECT_EQ(by_mod.columns[0].mean, all.columns[0].mean);
    EXPECT_EQ(by_mod.columns[0].squares, all.columns[0].squares);
  }
}

TEST_F(DistributedFeedTest, says_that_a_shard_was_changed_under_way) {
  // The lanes of this worker have no rows in s0.
  const Feed one = feed(Partition::Size, 1, 2);
  folder_.write("s0/d.tsv", "ID\tx\nid0\t0\n");
  folder_.write("s0/t.tsv", "ID\ty\nid0\t0\n");
  expect_error(ErrorKind::DataLoss, AllOf(HasSubstr("s0/d.tsv"), HasSubstr("1 rows, but had 5")),
               [&] { one.read(std::vector<int64_t>{0}); });
}

TEST_F(DistributedFeedTest, knows_ids_places_and_statistics) {
  const Feed one = feed(Partition::Mod, 0, 2);
  EXPECT_EQ(one.id(5), "id6");  // s2 follows s0
  EXPECT_EQ(one.place_of(5), folder_ / "s2/d.tsv:2" + ", " + (folder_ / "s2/t.tsv:4"));
  EXPECT_THAT(one.place_of(12), ::testing::EndsWith("/s1")) << "the other worker's, which is not open";
  const TableStatistics desc = one.statistics("desc");
  EXPECT_EQ(desc.columns.at(0).max, 19);
  EXPECT_EQ(desc.columns.at(0).count, 20);
}

TEST(Partition, is_read_from_text) {
  EXPECT_EQ(parse_partition("mod"), Partition::Mod);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("mod, size or all"), [] { parse_partition("sizes"); });
}

}  // namespace
}  // namespace tutti::data
