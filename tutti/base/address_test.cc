#include "tutti/base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::address_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Address, reads_names_numbers_and_ipv6) {
  EXPECT_EQ(parse_address("host:2222"), (Address{"host", 2222}));
  EXPECT_EQ(parse_address("my-node_1.example.org:0"), (Address{"my-node_1.example.org", 0}));
  EXPECT_EQ(parse_address("10.0.0.1:65535"), (Address{"10.0.0.1", 65535}));
  EXPECT_EQ(parse_address("[::1]:80"), (Address{"::1", 80}));
  EXPECT_EQ(parse_address("[fe80::1%eth0]:80"), (Address{"fe80::1%eth0", 80}));
}

TEST(Address, is_one_for_all_its_spellings) {
  EXPECT_EQ(parse_address("Host:02222"), parse_address("host:2222"));
  EXPECT_EQ(parse_address("[FE80::A]:1"), parse_address("[fe80::a]:1"));
}

TEST(Address, is_written_as_it_is_read) {
  for (const char* text : {"host:2222", "[::1]:80", "10.0.0.1:0"})
    EXPECT_EQ(to_string(parse_address(text)), text);
}

TEST(Address, bad_ports_are_quoted) {
  for (const char* port : {"", "x", "-1", "65536", "99999999999999999999", "22 ", "0x16", "+1", "2.2"}) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr("'" + std::string(port) + "' is not a port"), HasSubstr("'h:")),
                 [&] { parse_address("h:" + std::string(port)); });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'host' has no port"), [] { parse_address("host"); });
}

TEST(Address, bad_hosts_are_quoted) {
  for (const char* text : {":1", " h:1", "h h:1", "a/b:1", "h;:1", "a|b:1", "http://h:1", "[]:1", "[h]:1",
                           "[::1:1", "h]:1", "\xc3\xa9:1", "a\nb:1"}) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr(text), HasSubstr("is not a host name")),
                 [&] { parse_address(text); });
  }
}

TEST(Address, ipv6_without_brackets_says_what_to_do) {
  for (const char* text : {"::1:2222", "fe80::1", "1:2:3:4:5:6:7:8:2222"}) {
    expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr(text), HasSubstr("brackets")),
                 [&] { parse_address(text); });
  }
}

}  // namespace
}  // namespace tutti::address_test
