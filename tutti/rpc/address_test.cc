#include "tutti/rpc/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::rpc {
namespace {

using testing::HasSubstr;

TEST(Address, has_a_host_and_a_port) {
  EXPECT_EQ(parse_address("h:2222").host, "h");
  EXPECT_EQ(parse_address("h:2222").port, 2222);
  EXPECT_EQ(parse_address("127.0.0.1:0").port, 0);
  EXPECT_EQ(parse_address("[::1]:80").host, "::1");
}

TEST(Address, what_is_none_is_refused) {
  for (const char* text : {"", "h", ":1", "h:", "h:x", "h:-1", "h:65536", "::1:80", "[::1]", "unix:/tmp/x:1",
                           "a b:1", "h:1 ", "[]:1", "dns:///h:1"})
    expect_error(ErrorKind::InvalidArgument, HasSubstr(text), [&] { parse_address(text); });
}

TEST(Address, this_machine_s_alone_are_known) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "2001:db8::1"})
    EXPECT_FALSE(is_loopback(host)) << host;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no.such.host.invalid"),
               [] { is_loopback("no.such.host.invalid"); });
}

}  // namespace
}  // namespace tutti::rpc
