#include "tutti/base/ports.h"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>

namespace tutti::ports_test {
namespace {

TEST(Ports, are_all_different_and_above_the_privileged_ones) {
  std::vector<int> ports = free_ports(50);
  ASSERT_EQ(ports.size(), 50U);
  std::sort(ports.begin(), ports.end());
  EXPECT_EQ(std::unique(ports.begin(), ports.end()), ports.end());
  EXPECT_GE(ports.front(), 1024);
}

TEST(Ports, are_none_that_the_system_would_give_to_others) {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0;
  int last = 0;
  ASSERT_TRUE(file >> first >> last);
  if (first < 20000 && last > 60000)
    GTEST_SKIP() << "NOT TESTED: the system keeps nearly all ports for itself";
  for (const int port : free_ports(50)) EXPECT_TRUE(port < first || port > last) << port;
}

TEST(Ports, none_where_none_is_asked_for) { EXPECT_TRUE(free_ports(0).empty()); }

}  // namespace
}  // namespace tutti::ports_test
