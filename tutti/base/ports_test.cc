#include "tutti/base/ports.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>

#include "tutti/base/net.h"
#include "tutti/base/test_errors.h"

namespace tutti::ports_test {
namespace {

using ::testing::HasSubstr;

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

TEST(HeldPorts, are_nobody_elses_while_they_are_held) {
  std::optional<HeldPorts> held(std::in_place, 1);
  const int port = held->numbers().at(0);
  const SocketAddress address = resolve("127.0.0.1", port).addresses.at(0);
  const PortRange only{port, port};
  expect_error(ErrorKind::Overloaded, HasSubstr("too few of the ports"), [&] { HeldPorts(1, only); });
  EXPECT_EQ(connect_within(address, std::chrono::minutes(1)).error, ECONNREFUSED);
  for (int life = 0; life < 2; ++life) {
    const Listening listening = listen_at(address);
    EXPECT_EQ(listening.error, 0);
    EXPECT_EQ(connect_within(address, std::chrono::minutes(1)).error, 0);
    EXPECT_EQ(listen_at(address).error, EADDRINUSE);
    expect_error(ErrorKind::Overloaded, HasSubstr("too few of the ports"), [&] { HeldPorts(1, only); });
  }
  EXPECT_EQ(listen_everywhere(port).error, 0);
}

TEST(HeldPorts, lie_in_the_range) {
  const int first = HeldPorts(1).numbers().at(0);
  const PortRange range{std::min(first, 65000), std::min(first, 65000) + 500};
  const HeldPorts held(5, range);
  for (const int port : held.numbers()) EXPECT_TRUE(port >= range.first && port <= range.last) << port;
}

TEST(HeldPorts, have_a_range_that_is_written_in_a_text) {
  EXPECT_EQ(parse_port_range("2222-2300").first, 2222);
  EXPECT_EQ(parse_port_range("2222-2300").last, 2300);
  EXPECT_EQ(parse_port_range("7").last, 7);
  for (const char* text : {"", "-", "1-", "-2", "0-5", "5-4", "1-65536", "1-2-3", "a-b", "1 - 2"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { parse_port_range(text); });
}

TEST(Ports, none_where_none_is_asked_for) { EXPECT_TRUE(free_ports(0).empty()); }

}  // namespace
}  // namespace tutti::ports_test
