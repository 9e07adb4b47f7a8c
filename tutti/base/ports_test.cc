#include "tutti/base/ports.h"

#include <algorithm>

#include <gmock/gmock.h>

namespace tutti {
namespace {

TEST(Ports, are_all_different_and_above_the_privileged_ones) {
  std::vector<int> ports = free_ports(50);
  ASSERT_EQ(ports.size(), 50U);
  std::sort(ports.begin(), ports.end());
  EXPECT_EQ(std::unique(ports.begin(), ports.end()), ports.end());
  EXPECT_GE(ports.front(), 1024);
}

TEST(Ports, none_where_none_is_asked_for) { EXPECT_TRUE(free_ports(0).empty()); }

}  // namespace
}  // namespace tutti
