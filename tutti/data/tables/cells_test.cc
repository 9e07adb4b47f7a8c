#include "tutti/data/tables/cells.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
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

// Compares with the C library, to the bit. Returns true if the number had the common form.
bool check(const std::string& text) {
  float number = 0;
  const char* const end = read_common_number(text.data(), text.data() + text.size(), number);
  if (end == nullptr) return false;
  char* expected_end = nullptr;
  const float expected = std::strtof(text.c_str(), &expected_end);
  EXPECT_EQ(end, expected_end) << text;
  EXPECT_EQ(std::bit_cast<uint32_t>(number), std::bit_cast<uint32_t>(expected)) << text;
  return true;
}

TEST(FloatText, of_the_common_kind_gives_the_nearest_float) {
  for (const char* text :
       {"0", "-0", "1", "-1.5", "0.1", ".5", "5.", "3e2", "3E-2", "1e+22", "16777215", "0.000123456\tx"})
    EXPECT_TRUE(check(text)) << text;
  std::mt19937_64 random(3);
  int common = 0;
  constexpr int kTexts = 300000;
  for (int i = 0; i < kTexts; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const int digits = 1 + static_cast<int>(random() % 12);
    common += check(i % 2 == 0 ? fmt::format("{:.{}g}", value, digits)
                               : fmt::format("{:.{}f}", std::fmod(value, 1e4F), digits))
                  ? 1
                  : 0;
  }
  EXPECT_GT(common, kTexts / 2);
}

// Tests any text after the number, and any number of digits before and after the point.
TEST(FloatText, ends_where_its_digits_end) {
  for (const std::string& behind : {std::string(), std::string("\t1234567890"),
                                    std::string("\xff\xff\xff\xff"
                                                "99999999"),
                                    std::string("/0:0;0"), std::string(20, '\0')}) {
    for (int whole = 0; whole <= 15; ++whole) {
      for (int part = whole == 0 ? 1 : 0; part <= 15 - whole; ++part) {
        const std::string text = std::string("987654321098765").substr(0, static_cast<size_t>(whole)) + "." +
                                 std::string("123456789012345").substr(0, static_cast<size_t>(part));
        float number = 0;
        const std::string all = text + behind;
        const char* const end = read_common_number(all.data(), all.data() + all.size(), number);
        if (end == nullptr) continue;  // exactly between two floats
        EXPECT_EQ(end - all.data(), static_cast<std::ptrdiff_t>(text.size())) << all;
        EXPECT_EQ(number, std::strtof(text.c_str(), nullptr)) << all;
      }
    }
  }
}

// Tests numbers exactly between two floats, and very close to that.
TEST(FloatText, that_is_hard_to_round_gives_the_nearest_float) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100000; ++i) {
    const double between = static_cast<double>((random() % (1 << 23)) + (1 << 23)) + 0.5;
    check(fmt::format("{:.1f}", between));
    check(fmt::format("{:.1f}00001", between));
    check(fmt::format("{}e-{}", static_cast<uint64_t>(between * 10), 1 + random() % 20));
  }
}

TEST(FloatText, of_another_kind_is_left_to_others) {
  for (const char* text :
       {"", "-", ".", "x", "nan", "inf", "1e", "1e-", "1e100", "1234567890123456", "1e-40", "+1"})
    EXPECT_FALSE(check(text)) << text;
}

using ReadFloats = size_t(const char*&, const char*, char, size_t, float*);
class ManyFloats : public testing::TestWithParam<ReadFloats*> {};

// Reads the cells as a table does: many at once, and the remaining ones one by one. Both ways must give the
// same numbers.
void check_row(ReadFloats* read, const std::string& row, size_t& at_once) {
  const char* at = row.data();
  const char* const end = at + row.size();
  std::vector<float> numbers(static_cast<size_t>(std::count(row.begin(), row.end(), '\t')));
  while (at != end) {
    const char* expected = at;
    const size_t count = read(at, end, '\t', numbers.size(), numbers.data());
    at_once += count;
    for (size_t i = 0; i < count; ++i) {
      char* behind = nullptr;
      EXPECT_EQ(std::bit_cast<uint32_t>(numbers[i]), std::bit_cast<uint32_t>(std::strtof(expected, &behind)))
          << std::string_view(expected, static_cast<size_t>(behind - expected));
      ASSERT_EQ(*behind, '\t');
      expected = behind + 1;
    }
    ASSERT_EQ(at, expected);
    at = std::find(at, end, '\t');
    if (at != end) ++at;
  }
}

TEST_P(ManyFloats, are_each_the_nearest_float) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  size_t at_once = 0;
  constexpr size_t kRows = 2000;
  constexpr size_t kCells = 60;
  for (size_t i = 0; i < kRows; ++i) {
    std::string row;
    for (size_t cell = 0; cell < kCells; ++cell) {
      const double value = normal(random) * std::pow(10, static_cast<int>(random() % 9) - 4);
      row += random() % 2 == 0 ? fmt::format("{:.{}f}\t", value, random() % 9)
                               : fmt::format("{:.{}g}\t", value, 1 + random() % 9);
    }
    check_row(GetParam(), row, at_once);
  }
  EXPECT_GT(at_once, kRows * kCells / 2);
}

TEST_P(ManyFloats, of_every_length_and_with_the_point_at_every_place) {
  const std::string digits = "9876543210987654321";
  std::string row;
  for (size_t length = 0; length < digits.size(); ++length) {
    for (const char* sign : {"", "-"}) {
      row += sign + digits.substr(0, length) + '\t';
      for (size_t point = 0; point <= length; ++point)
        row += sign + digits.substr(0, point) + '.' + digits.substr(point, length - point) + '\t';
    }
  }
  size_t at_once = 0;
  check_row(GetParam(), row, at_once);
  EXPECT_GT(at_once, 200);
}

TEST_P(ManyFloats, end_before_what_is_of_another_kind) {
  const std::vector<std::string> others = {
      "",      "-",   ".",  "-.",  "x",    "1x",     "1.5.",
      "1.5.5", "--1", "1-", "+1",  " 1",   "1 ",     "1,5",
      "1e",    "nan", "/1", "1:2", "\xb1", "1\xae.", "12345678901234567"};
  for (const std::string& other : others) {
    const std::string row = "1.5\t-2\t" + other + "\t3\t12345678901234567890\t";
    std::vector<float> numbers(8);
    const char* at = row.data();
    EXPECT_EQ(GetParam()(at, row.data() + row.size(), '\t', 8, numbers.data()), 2) << other;
    EXPECT_EQ(at - row.data(), 7) << other;
    EXPECT_EQ(numbers[1], -2);
  }
}

TEST_P(ManyFloats, are_no_more_than_asked_for_and_stay_inside_of_the_text) {
  for (size_t size = 0; size < 60; ++size) {
    // Has exactly that size, for the address sanitizer.
    std::vector<char> text(size);
    for (size_t i = 0; i < size; ++i) text[i] = i % 3 == 2 ? '\t' : '5';
    for (size_t most = 0; most <= 20; ++most) {
      std::vector<float> numbers(most);
      const char* at = text.data();
      const size_t count = GetParam()(at, text.data() + size, '\t', most, numbers.data());
      EXPECT_LE(count, std::min(most, size / 3));
      EXPECT_EQ(at - text.data(), static_cast<std::ptrdiff_t>(3 * count));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, ManyFloats,
                         testing::Values(static_cast<ReadFloats*>(read_common_numbers),
                                         static_cast<ReadFloats*>(read_common_numbers_portable)));

using ReadIntegers = size_t(const char*&, const char*, char, size_t, int64_t*);
class ManyIntegers : public testing::TestWithParam<ReadIntegers*> {};

// Reads the cells as a table does: many at once, and the next one alone. Returns how many were read.
size_t check_integers(ReadIntegers* read, const std::vector<int64_t>& expected) {
  const std::string row = fmt::format("{}\t", fmt::join(expected, "\t"));
  const char* at = row.data();
  const char* const end = at + row.size();
  size_t taken = 0;
  size_t at_once = 0;
  std::vector<int64_t> numbers(expected.size());
  while (taken < expected.size()) {
    const size_t count = read(at, end, '\t', expected.size() - taken, numbers.data() + taken);
    at_once += count;
    taken += count;
    if (taken == expected.size()) break;
    const char* const behind = read_common_number(at, end, numbers[taken]);
    if (behind == nullptr) {  // 19 digits
      EXPECT_GE(static_cast<uint64_t>(std::abs(expected[taken])), uint64_t{1000000000000000000});
      numbers[taken] = expected[taken];
    }
    ++taken;
    at = std::find(at, end, '\t') + 1;
  }
  EXPECT_EQ(numbers, expected);
  return at_once;
}

TEST_P(ManyIntegers, are_exact_at_every_length) {
  std::mt19937_64 random(11);
  std::vector<int64_t> numbers;
  for (int i = 0; i < 20000; ++i) {
    const auto number = static_cast<int64_t>(random() >> (1 + random() % 63));
    numbers.push_back(random() % 2 == 0 ? number : -number);
  }
  EXPECT_GT(check_integers(GetParam(), numbers), numbers.size() / 2);
  numbers.clear();
  for (int64_t power = 1; power <= 100'000'000'000'000'000; power *= 10) {
    for (const int64_t number : {power - 1, power, 9 * power, 10 * power - 1})
      numbers.insert(numbers.end(), {number, -number});
  }
  check_integers(GetParam(), numbers);
}

TEST_P(ManyIntegers, end_before_what_is_of_another_kind) {
  for (const std::string other : {"",
                                  "-",
                                  "--1",
                                  "1-",
                                  "+1",
                                  " 1",
                                  "1 ",
                                  "1.0",
                                  ".1",
                                  "1e3",
                                  "0x10",
                                  "1,5",
                                  "/1",
                                  "1:2",
                                  "\xb1",
                                  "1_000",
                                  "nan",
                                  "1234567890123456789",
                                  "-1234567890123456789",
                                  "12345678901234567890123"}) {
    const std::string row = "15\t-2\t" + other + "\t3\t12345678901234567890\t";
    std::vector<int64_t> numbers(8);
    const char* at = row.data();
    EXPECT_EQ(GetParam()(at, row.data() + row.size(), '\t', 8, numbers.data()), 2) << other;
    EXPECT_EQ(at - row.data(), 6) << other;
    EXPECT_EQ(numbers[0], 15);
    EXPECT_EQ(numbers[1], -2);
  }
}

TEST_P(ManyIntegers, are_no_more_than_asked_for_and_stay_inside_of_the_text) {
  for (size_t size = 0; size < 60; ++size) {
    std::vector<char> text(size);  // has exactly that size, for the address sanitizer
    for (size_t i = 0; i < size; ++i) text[i] = i % 3 == 2 ? '\t' : '5';
    for (size_t most = 0; most <= 20; ++most) {
      std::vector<int64_t> numbers(most);
      const char* at = text.data();
      const size_t count = GetParam()(at, text.data() + size, '\t', most, numbers.data());
      EXPECT_LE(count, std::min(most, size / 3));
      EXPECT_EQ(at - text.data(), static_cast<std::ptrdiff_t>(3 * count));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, ManyIntegers,
                         testing::Values(static_cast<ReadIntegers*>(read_common_numbers),
                                         static_cast<ReadIntegers*>(read_common_numbers_portable)));

}  // namespace
}  // namespace tutti::data
