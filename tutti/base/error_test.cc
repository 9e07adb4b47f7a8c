#include "tutti/base/error.h"

#include <cerrno>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/check.h"
#include "tutti/base/test_errors.h"

namespace tutti::error_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<ErrorKind> kKinds = {
    ErrorKind::InvalidArgument, ErrorKind::PeerLost,      ErrorKind::Timeout, ErrorKind::DataLoss,
    ErrorKind::Overloaded,      ErrorKind::Unimplemented, ErrorKind::Bug};

TEST(Error, every_kind_has_a_name_and_an_exit_code_of_its_own) {
  std::set<int> codes;
  std::set<std::string_view> names;
  for (const ErrorKind kind : kKinds) {
    codes.insert(exit_code(kind));
    names.insert(to_string(kind));
    // 0 means success, 1 any other failure, and 126 and above belong to the shell and to signals.
    EXPECT_GT(exit_code(kind), 1);
    EXPECT_LT(exit_code(kind), 126);
  }
  EXPECT_EQ(codes.size(), kKinds.size());
  EXPECT_EQ(names.size(), kKinds.size());
}

TEST(Error, formats_its_text) {
  expect_error(ErrorKind::DataLoss, testing::Eq("a.idx: ends at byte 7"),
               [] { fail(ErrorKind::DataLoss, "{}: ends at byte {}", "a.idx", 7); });
}

TEST(Error, system_calls_fail_with_what_the_caller_can_do) {
  for (const int number : {ENOSPC, EDQUOT, ENOMEM, EMFILE}) {
    expect_error(ErrorKind::Overloaded, HasSubstr("writing /x: " + errno_text(number)),
                 [number] { fail_errno(number, "writing /x"); });
  }
  expect_error(ErrorKind::DataLoss, HasSubstr("reading /x"), [] { fail_errno(EIO, "reading /x"); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("No such file"),
               [] { fail_errno(ENOENT, "reading /x"); });
}

TEST(Check, says_where_and_with_which_values) {
  const int begin = 3;
  EXPECT_NO_THROW(TUTTI_CHECK(begin == 3, "begin {}", begin));
  expect_error(ErrorKind::Bug,
               AllOf(HasSubstr("error_test.cc:"), HasSubstr("begin < 2 does not hold"), HasSubstr("begin 3")),
               [begin] { TUTTI_CHECK(begin < 2, "begin {}", begin); });
}

}  // namespace
}  // namespace tutti::error_test
