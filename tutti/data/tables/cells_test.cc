#include "tutti/data/tables/cells.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/test_errors.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> cells_of(std::string_view row, const TextFormat& format) {
  std::vector<std::string> all;
  Cells cells(row, format);
  while (const auto cell = cells.next()) all.emplace_back(*cell);
  return all;
}

TEST(Cells, lie_between_separators) {
  EXPECT_THAT(cells_of("a\tb\t\tc", tsv()), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(cells_of("a\t", tsv()), ElementsAre("a", ""));
  EXPECT_THAT(cells_of("", tsv()), ElementsAre(""));
  EXPECT_THAT(cells_of("\"a\"\t1", tsv()), ElementsAre("\"a\"", "1"));
}

TEST(Cells, in_quotes_hold_anything) {
  EXPECT_THAT(cells_of("\"a,b\",\"c\nd\",\"say \"\"no\"\"\"", csv()),
              ElementsAre("a,b", "c\nd", "say \"no\""));
  EXPECT_THAT(cells_of("\"\",a,\"\"", csv()), ElementsAre("", "a", ""));
  EXPECT_THAT(cells_of("a\"b,c", csv()), ElementsAre("a\"b", "c"));
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("\"a\""), HasSubstr("'bc'")),
               [] { cells_of("\"a\"bc,d", csv()); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("not closed"), [] { cells_of("\"a,d", csv()); });
}

TEST(Cells, may_be_missing) {
  for (const char* cell : {"", "NA", "NaN", "null"}) EXPECT_TRUE(is_missing(cell, tsv())) << cell;
  for (const char* cell : {"0", "-", "na ", "none"}) EXPECT_FALSE(is_missing(cell, tsv())) << cell;
}

TEST(Utf8, is_told_from_what_is_not) {
  for (const char* text :
       {"", "m17", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x8E\xBB", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text : {"\x80", "\xC3", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                           "\xF5\x80\x80\x80", "\xE2\x82", "a\xFF"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

}  // namespace
}  // namespace tutti::data
