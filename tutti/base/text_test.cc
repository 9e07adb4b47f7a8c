#include "tutti/base/text.h"

#include <gtest/gtest.h>

namespace tutti::text_test {
namespace {

const std::vector<std::string> kFlags = {"lanes", "batch", "steps", "epochs", "seed"};

TEST(Text, suggests_the_name_that_was_meant) {
  EXPECT_EQ(nearest("lane", kFlags), "lanes");
  EXPECT_EQ(nearest("bacth", kFlags), "batch");
  EXPECT_EQ(did_you_mean("stesp", kFlags), "; did you mean 'steps'?");
}

TEST(Text, suggests_nothing_where_nothing_is_near) {
  EXPECT_EQ(nearest("wibble", kFlags), std::nullopt);
  EXPECT_EQ(did_you_mean("", kFlags), "");
}

TEST(Text, parses_whole_numbers_only) {
  EXPECT_EQ(parse_int("-12"), -12);
  EXPECT_EQ(parse_int("12x"), std::nullopt);
  EXPECT_EQ(parse_int(""), std::nullopt);
  EXPECT_EQ(parse_int(" 12"), std::nullopt);
  EXPECT_EQ(parse_int("99999999999999999999"), std::nullopt);
  EXPECT_EQ(parse_double("1e-4"), 1e-4);
  EXPECT_EQ(parse_double("1e-4 "), std::nullopt);
}

TEST(Text, parses_bytes_with_their_unit) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("3G"), uint64_t{3} << 30);
  EXPECT_EQ(parse_bytes("16777215T"), uint64_t{16777215} << 40);
  for (const char* text : {"", "K", "-1", "1.5M", "4 K", "4k", "4KB", "16777216T", "99999999999999999999"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(Text, splits_and_keeps_empty_pieces) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
}

TEST(Text, writes_bytes_for_people) {
  EXPECT_EQ(human_bytes(17), "17 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 30), "3.0 GiB");
}

TEST(Text, groups_the_digits_of_a_number) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(grouped(-1234), "-1,234");
}

}  // namespace
}  // namespace tutti::text_test
