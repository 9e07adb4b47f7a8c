#include "tutti/comm/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::group_test {
namespace {

using ::testing::HasSubstr;

// The groups of workers that meet at parameter servers have no connection to each other.
TEST(Group, of_unconnected_workers_is_split_by_a_function_that_each_of_them_computes) {
  Group all;
  all.rank = 4;
  all.world = 6;
  const Group even = all.split([](int rank) { return rank % 2; });
  EXPECT_EQ(even.part, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(even.rank, 2);
  EXPECT_EQ(even.world, 3);
  EXPECT_FALSE(even.is_chief());
  const Group last = even.split([](int rank) { return rank > 0 ? 1 : 0; });
  EXPECT_EQ(last.part, (std::vector<int>{2, 4}));
  EXPECT_EQ(last.rank_in_job(last.rank), 4);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("colour -1"),
               [&] { static_cast<void>(all.split([](int) { return -1; })); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("pass a function"),
               [&] { static_cast<void>(all.split(0)); });
}

}  // namespace
}  // namespace tutti::group_test
