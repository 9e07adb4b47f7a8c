#include "tutti/embedding/row_layout.h"

#include <array>
#include <limits>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::embedding::row_layout_test {
namespace {

using ::testing::HasSubstr;

constexpr std::array kAll = {Placement::Mod, Placement::Block, Placement::Hash};

TEST(RowLayout, gives_each_row_one_place) {
  for (const Placement placement : kAll) {
    for (const int64_t rows : {1, 2, 3, 7, 10, 64, 1000}) {
      for (const int world : {1, 2, 3, 4, 8}) {
        const RowLayout layout(placement, rows, world);
        std::set<std::pair<int, int64_t>> places;
        for (int64_t id = 0; id < rows; ++id) {
          const RowLayout::Place place = layout.place_of(id);
          ASSERT_GE(place.owner, 0);
          ASSERT_LT(place.owner, world);
          ASSERT_LT(place.row, layout.count(place.owner))
              << name_of(placement) << " " << rows << " " << world;
          ASSERT_TRUE(places.emplace(place.owner, place.row).second);
          ASSERT_EQ(layout.id_at(place), id);
          const uint64_t key = layout.key_of(id);
          ASSERT_EQ(layout.place_of_key(key), place);
          ASSERT_EQ(key >> layout.key_bits(), 0);
          ASSERT_GE(key, layout.first_key(place.owner));
          ASSERT_LT(key, layout.first_key(place.owner + 1));
        }
        int64_t total = 0;
        for (int owner = 0; owner < world; ++owner) total += layout.count(owner);
        ASSERT_EQ(total, rows);
      }
    }
  }
}

TEST(RowLayout, places_rows_as_its_name_says) {
  const RowLayout mod(Placement::Mod, 10, 3);
  EXPECT_EQ(mod.place_of(7), (RowLayout::Place{1, 2}));
  const RowLayout block(Placement::Block, 10, 3);
  EXPECT_EQ(block.place_of(3), (RowLayout::Place{0, 3}));
  EXPECT_EQ(block.place_of(4), (RowLayout::Place{1, 0}));
  EXPECT_EQ(block.place_of(9), (RowLayout::Place{2, 2}));
  // Ids with a pattern go to all owners.
  const RowLayout hash(Placement::Hash, 100000, 4);
  std::array<int, 4> counts{};
  for (int64_t id = 0; id < 100000; id += 4) ++counts[static_cast<size_t>(hash.place_of(id).owner)];
  for (const int count : counts) EXPECT_GT(count, 100000 / 4 / 8);
}

TEST(RowLayout, works_with_tables_of_any_size) {
  constexpr int64_t kRows = (int64_t{1} << 40) - 1;
  for (const Placement placement : kAll) {
    const RowLayout layout(placement, kRows, 7);
    for (const int64_t id : {int64_t{0}, int64_t{1}, kRows / 2, kRows - 1})
      EXPECT_EQ(layout.id_at(layout.place_of(id)), id) << name_of(placement);
  }
}

TEST(RowLayout, of_a_table_that_grows_gives_each_id_one_place) {
  for (const int owners : {1, 2, 3, 5, 8, 64}) {
    const RowLayout layout(Placement::Mod, 0, owners);
    std::vector<int64_t> counts(static_cast<size_t>(owners));
    std::set<uint64_t> keys;
    for (int64_t i = 0; i < 4000; ++i) {
      const int64_t id = i < 2000 ? i : std::numeric_limits<int64_t>::max() - (i - 2000);
      const RowLayout::Place place = layout.place_of(id);
      ASSERT_EQ(layout.id_at(place), id);
      const uint64_t key = layout.key_of(id);
      ASSERT_TRUE(keys.insert(key).second);
      ASSERT_EQ(key >> RowLayout::kGrowingBits, 0);
      ASSERT_EQ(layout.place_of_key(key), place);
      ASSERT_GE(key, layout.first_key(place.owner));
      ASSERT_LT(key, layout.first_key(place.owner + 1));
      const int64_t bucket = RowLayout::bucket_of(place.row);
      ASSERT_GE(bucket, 0);
      ASSERT_LT(bucket, RowLayout::kBuckets);
      ++counts.at(static_cast<size_t>(place.owner));
    }
    for (const int64_t count : counts) EXPECT_GT(count, 4000 / owners / 2) << owners;
  }
}

TEST(RowLayout, knows_its_names) {
  for (const Placement placement : kAll) EXPECT_EQ(parse_placement(name_of(placement), "x"), placement);
  expect_error(ErrorKind::DataLoss, HasSubstr("'round' is not a placement"),
               [] { parse_placement("round", "x"); });
}

TEST(InitialRow, depends_on_seed_table_and_id) {
  const auto row = [](int64_t seed, const char* table, int64_t id) {
    std::vector<float> values(8);
    make_initial_row(seed_of_table(seed, table), id, 0.5, values);
    return values;
  };
  EXPECT_EQ(row(1, "user", 3), row(1, "user", 3));
  EXPECT_NE(row(1, "user", 3), row(1, "user", 4));
  EXPECT_NE(row(1, "user", 3), row(2, "user", 3));
  EXPECT_NE(row(1, "user", 3), row(1, "item", 3));
  double sum = 0;
  double squares = 0;
  for (int64_t id = 0; id < 10000; ++id) {
    for (const float value : row(7, "t", id)) {
      ASSERT_GE(value, -0.5);
      ASSERT_LE(value, 0.5);
      sum += value;
      squares += value * value;
    }
  }
  EXPECT_NEAR(sum / 80000, 0, 0.005);
  EXPECT_NEAR(squares / 80000, 1.0 / 12, 0.002);
}

}  // namespace
}  // namespace tutti::embedding::row_layout_test
