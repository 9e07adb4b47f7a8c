#include "tutti/rpc/listening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::rpc::listening_test {
namespace {

using testing::HasSubstr;

TEST(Listening, knows_the_addresses_that_are_this_machine_s_alone) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "2001:db8::1"})
    EXPECT_FALSE(is_loopback(host)) << host;
  expect_error(ErrorKind::InvalidArgument, HasSubstr("no.such.host.invalid"),
               [] { is_loopback("no.such.host.invalid"); });
}

}  // namespace
}  // namespace tutti::rpc::listening_test
