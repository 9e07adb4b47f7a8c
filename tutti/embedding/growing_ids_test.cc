#include "tutti/embedding/growing_ids.h"

#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/embedding/row_layout.h"

namespace tutti::embedding::growing_ids_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(IdSlots, are_found_after_any_insertions_and_removals) {
  std::mt19937_64 random(5);
  IdSlots ids;
  std::map<int64_t, int64_t> expected;  // slot by number
  for (int i = 0; i < 20000; ++i) {
    // Close together and with equal low bits, so that there are long runs in the index.
    const auto number = static_cast<int64_t>((random() % 50) << 20 | random() % 40);
    const auto found = expected.find(number);
    ASSERT_EQ(ids.find(number), found == expected.end() ? IdSlots::kNone : found->second);
    if (found == expected.end()) {
      expected[number] = ids.insert(number, 0, 0);
    } else {
      ids.erase(found->second);
      expected.erase(found);
    }
    ASSERT_EQ(ids.size(), static_cast<int64_t>(expected.size()));
  }
  EXPECT_LE(ids.slots(), 2000);
  for (const auto& [number, slot] : expected) EXPECT_EQ(ids.number_in(slot), number);
  ids.read_memory();
  EXPECT_EQ(ids.size(), static_cast<int64_t>(expected.size()));
  for (const auto& [number, slot] : expected) EXPECT_EQ(ids.find(number), slot);
}

using Numbers = std::vector<int64_t>;

TEST(GrowingIds, get_a_row_with_the_first_lookup) {
  GrowingIds ids({});
  EXPECT_TRUE(ids.shows_initial_values(7));
  const auto first = ids.count(Numbers{3, 7}, Numbers{1, 2}, 0);
  EXPECT_THAT(first.slots, ElementsAre(0, 1));
  EXPECT_THAT(first.made, ElementsAre(0, 1));
  const auto second = ids.count(Numbers{5, 7}, Numbers{1, 1}, 1);
  EXPECT_THAT(second.slots, ElementsAre(2, 1));
  EXPECT_THAT(second.made, ElementsAre(2));
  EXPECT_EQ(ids.rows().lookups(1), 3);
  EXPECT_EQ(ids.rows().last_step(1), 1);
  EXPECT_EQ(ids.counts().admitted, 3);
}

TEST(GrowingIds, are_admitted_after_enough_lookups) {
  GrowingIds ids({.admit_after = 3});
  EXPECT_FALSE(ids.shows_initial_values(7));
  EXPECT_THAT(ids.count(Numbers{7}, Numbers{2}, 0).slots, ElementsAre(IdSlots::kNone));
  EXPECT_EQ(ids.counts().waiting, 1);
  const auto admitted = ids.count(Numbers{7}, Numbers{1}, 1);
  EXPECT_THAT(admitted.slots, ElementsAre(IdSlots::kNone)) << "its lookups in this step were zeros";
  EXPECT_THAT(admitted.made, ElementsAre(0));
  EXPECT_EQ(ids.counts().waiting, 0);
  EXPECT_THAT(ids.count(Numbers{7}, Numbers{1}, 2).slots, ElementsAre(0));
  EXPECT_EQ(ids.rows().lookups(0), 4);
}

// The first rows of one bucket, in ascending order.
Numbers rows_of_a_bucket(int count) {
  Numbers rows;
  for (int64_t row = 0; static_cast<int>(rows.size()) < count; ++row) rows.push_back(row);
  return rows;
}

TEST(GrowingIds, are_refused_when_their_bucket_is_full) {
  GrowingIds ids({.most_rows = 2 * RowLayout::kBuckets});
  const Numbers rows = rows_of_a_bucket(3);
  const auto counted = ids.count(rows, Numbers{1, 1, 1}, 0);
  EXPECT_THAT(counted.slots, ElementsAre(0, 1, IdSlots::kNone));
  EXPECT_FALSE(ids.shows_initial_values(rows[2]));
  EXPECT_TRUE(ids.shows_initial_values(int64_t{1} << 62)) << "another bucket";
  EXPECT_EQ(ids.counts().refused, 1);
  EXPECT_EQ(ids.counts().rows, 2);
}

TEST(GrowingIds, replace_the_oldest_but_none_of_the_same_step) {
  GrowingIds ids({.most_rows = 3 * RowLayout::kBuckets, .when_full = WhenFull::ReplaceOldest});
  const Numbers rows = rows_of_a_bucket(8);
  ids.count(Numbers{rows[0], rows[1]}, Numbers{1, 1}, 0);
  ids.count(Numbers{rows[2]}, Numbers{1}, 1);
  ids.count(Numbers{rows[0]}, Numbers{1}, 2);
  const auto fourth = ids.count(Numbers{rows[3]}, Numbers{1}, 3);
  ASSERT_EQ(fourth.dropped.size(), 1U);
  EXPECT_EQ(fourth.dropped[0].row, rows[1]);
  // Row 2, the oldest, is looked up in this step too, so row 0 goes.
  const auto fifth = ids.count(Numbers{rows[2], rows[4]}, Numbers{1, 1}, 4);
  ASSERT_EQ(fifth.dropped.size(), 1U);
  EXPECT_EQ(fifth.dropped[0].row, rows[0]);
  const auto sixth =
      ids.count(Numbers{rows[2], rows[3], rows[4], rows[5], rows[6]}, Numbers{1, 1, 1, 1, 1}, 5);
  EXPECT_THAT(sixth.dropped, IsEmpty());
  EXPECT_EQ(ids.counts().refused, 2);
  EXPECT_EQ(ids.counts().evicted, 2);
  EXPECT_EQ(ids.counts().rows, 3);
}

TEST(GrowingIds, are_evicted_by_age_and_by_lookups) {
  GrowingIds ids({.evict_unused_for = 2, .evict_below = 2});
  ids.count(Numbers{1, 2, 3}, Numbers{5, 1, 2}, 0);
  ids.count(Numbers{2, 3}, Numbers{1, 1}, 3);
  ids.count(Numbers{4}, Numbers{1}, 3);
  EXPECT_THAT(ids.evict(3), ElementsAre(1, 4)) << "1 is old, 4 was looked up once";
  EXPECT_EQ(ids.rows().find(1), IdSlots::kNone);
  EXPECT_NE(ids.rows().find(2), IdSlots::kNone);
  EXPECT_EQ(ids.counts().evicted, 2);
}

TEST(GrowingIds, do_not_depend_on_the_number_of_owners) {
  const Growth growth{
      .most_rows = 3 * RowLayout::kBuckets, .when_full = WhenFull::ReplaceOldest, .admit_after = 2};
  const auto rows_after = [&](int owners) {
    const RowLayout layout(Placement::Mod, 0, owners);
    std::vector<GrowingIds> all;
    for (int owner = 0; owner < owners; ++owner) all.emplace_back(growth);
    std::mt19937_64 random(3);
    for (int64_t step = 0; step < 40; ++step) {
      std::vector<std::map<int64_t, int64_t>> counts(static_cast<size_t>(owners));
      for (int i = 0; i < 2000; ++i) {
        const RowLayout::Place place = layout.place_of(static_cast<int64_t>(random() % 6000));
        ++counts[static_cast<size_t>(place.owner)][place.row];
      }
      for (size_t owner = 0; owner < all.size(); ++owner) {
        Numbers rows;
        Numbers lookups;
        for (const auto& [row, count] : counts[owner]) {
          rows.push_back(row);
          lookups.push_back(count);
        }
        all[owner].count(rows, lookups, step);
      }
    }
    std::map<int64_t, std::pair<int64_t, int64_t>> found;
    GrowthCounts total;
    for (const GrowingIds& ids : all) {
      total += ids.counts();
      for (int64_t slot = 0; slot < ids.rows().slots(); ++slot) {
        if (ids.rows().number_in(slot) != IdSlots::kNone)
          found[ids.rows().number_in(slot)] = {ids.rows().lookups(slot), ids.rows().last_step(slot)};
      }
    }
    EXPECT_GT(total.evicted, 0);
    EXPECT_EQ(total.rows, static_cast<int64_t>(found.size()));
    return std::pair(found, total.evicted);
  };
  const auto alone = rows_after(1);
  for (const int owners : {2, 3, 5, 8}) EXPECT_EQ(rows_after(owners), alone) << owners;
}

}  // namespace
}  // namespace tutti::embedding::growing_ids_test
