#include "tutti/data/tables/text_table.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/tables/test_tables.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TextTableTest : public ::testing::Test {
 protected:
  TextTable table(const std::string& text, const TextFormat& format = {}) const {
    return TextTable(folder_.write("t.tsv", text), format, {{}});
  }
  // Returns the numbers of all rows.
  std::vector<float> numbers(const std::string& text, const TextFormat& format = {}) const {
    const TextTable all = table(text, format);
    return cells_of(all, 0, all.size());
  }
  // Returns the text of the error when the table is opened or read.
  std::string error(const std::string& text, const TextFormat& format = {}) const {
    return error_of(ErrorKind::DataLoss, [&] { numbers(text, format); });
  }

  const TestFolder folder_;
};

TEST_F(TextTableTest, has_columns_ids_and_numbers) {
  const TextTable t = table("ID\tx\ty\nb\t1\t2.5\na\t-3e2\t+4\n");
  EXPECT_THAT(t.columns(), ElementsAre("x", "y"));
  EXPECT_EQ(t.size(), 2);
  EXPECT_EQ(t.id(1), "a");
  EXPECT_EQ(t.id(0), "b");
  EXPECT_THAT(numbers("ID\tx\ty\nb\t1\t2.5\na\t-3e2\t+4\n"), ElementsAre(1, 2.5F, -300, 4));
}

TEST_F(TextTableTest, takes_ids_from_any_column_as_they_are_written) {
  const std::string text = "x,name,y\r\n1,\"007\",2\r\n3, 7 ,4\r\n";
  TextFormat format = csv();
  format.id = "name";
  EXPECT_EQ(table(text, format).id(0), "007");
  EXPECT_EQ(table(text, format).id(1), "7");
  EXPECT_THAT(numbers(text, format), ElementsAre(1, 2, 3, 4));
}

TEST_F(TextTableTest, may_have_no_header) {
  TextFormat format;
  format.header = false;
  EXPECT_THAT(table("a\t1\nb\t2\n", format).columns(), ElementsAre("2"));
  EXPECT_THAT(numbers("a\t1\nb\t2\n", format), ElementsAre(1, 2));
}

TEST_F(TextTableTest, numbers_that_nobody_knows_are_nan) {
  const std::vector<float> found = numbers("ID\tx\ty\tz\na\t\tNA\t1\nb\tnan\t2\t\n");
  ASSERT_EQ(found.size(), 6U);
  for (const size_t i : {0, 1, 3, 5}) EXPECT_TRUE(std::isnan(found[i])) << i;
  EXPECT_EQ(found[2], 1);
  TextFormat format;
  format.missing = {"?"};
  EXPECT_TRUE(std::isnan(numbers("ID\tx\na\t?\n", format)[0]));
  EXPECT_THAT(error("ID\tx\na\tNA\n", format), HasSubstr("'NA' is not a number"));
}

TEST_F(TextTableTest, odd_ways_to_write_a_number_are_read) {
  EXPECT_THAT(numbers("ID\ta\tb\tc\td\te\n0\t 1 \t+2\t1e-60\tinf\t\"3\"\n", {.quotes = true}),
              ElementsAre(1, 2, 0, kInfinity, 3));
}

// Compares with the C library.
TEST_F(TextTableTest, reads_the_float_that_is_nearest) {
  std::mt19937 random(1);
  std::string text = "ID\tx\n";
  std::vector<float> expected;
  for (int i = 0; i < 2000; ++i) {
    const std::string number =
        i % 3 == 0 ? fmt::format("{}.{}e{}", random() % 10, random(), static_cast<int>(random() % 70) - 37)
                   : fmt::format("{}.{:06}", static_cast<int>(random() % 2000) - 1000, random() % 1000000);
    text += fmt::format("{}\t{}\n", i, number);
    expected.push_back(std::strtof(number.c_str(), nullptr));
  }
  EXPECT_EQ(numbers(text), expected);
}

TEST_F(TextTableTest, names_the_line_column_and_id_of_a_mistake) {
  EXPECT_THAT(error("ID\tx\ty\na\t1\t2\nb\t1\toops\n"),
              AllOf(HasSubstr("t.tsv:3:"), HasSubstr("'b'"), HasSubstr("column 'y' (3)"),
                    HasSubstr("'oops' is not a number")));
  EXPECT_THAT(error("ID\tx\na\t1e99\n"),
              AllOf(HasSubstr("t.tsv:2:"), HasSubstr("'1e99' is too large for a float32")));
  EXPECT_THAT(error("ID\tx\ty\na\t1\n"),
              AllOf(HasSubstr("t.tsv:2:"), HasSubstr("'a'"), HasSubstr("2 cells; expected 3")));
  EXPECT_THAT(error("ID\tx\na\t1\t2\n"), AllOf(HasSubstr("3 cells; expected 2"), HasSubstr("header")));
  EXPECT_THAT(error("ID\tx\na\t1\nb\t2\na\t3\n"),
              AllOf(HasSubstr("t.tsv:4:"), HasSubstr("'a'"), HasSubstr("line 2")));
  EXPECT_THAT(error("ID\tx\n\t1\n"), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("the ID is empty")));
  EXPECT_THAT(error("ID\tx\n\xC3\t1\n"), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("UTF-8")));
  EXPECT_THAT(error("ID\tx\tx\n"), AllOf(HasSubstr("t.tsv:1:"), HasSubstr("two columns are called 'x'")));
  EXPECT_THAT(error("ID\t\n"), AllOf(HasSubstr("t.tsv:1:"), HasSubstr("column 2 has no name")));
  EXPECT_THAT(error(""), HasSubstr("the file is empty"));
  TextFormat format = csv();
  format.id = "name";
  EXPECT_THAT(error("Name,x\na,1\n", format), AllOf(HasSubstr("'name'"), HasSubstr("did you mean 'Name'")));
  EXPECT_THAT(error("x,name\n1\n", format), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("1 cells")));
  EXPECT_THAT(error("name,x\n\"a\"b,1\n", format), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("quoted cell")));
}

std::string with_wrong_bytes(std::string text, std::mt19937& random) {
  const std::string_view bytes(
      "\0\n\r\t,\"\xFF\xC3"
      "a1-.e [];",
      17);
  for (int change = 0; change < 3; ++change) {
    const size_t at = random() % text.size();
    const char byte = bytes[random() % bytes.size()];
    if (random() % 2 == 0)
      text[at] = byte;
    else
      text.insert(at, 1, byte);
  }
  return text;
}

// The error names the line, the column and the number.
TEST_F(TextTableTest, whole_numbers_that_no_float_holds_are_an_error) {
  for (const char* number : {"16777217", "-16777217", "+33554433", "00016777217", "1700000000123",
                             "9007199254740993", "123456789012345678901234567890"}) {
    EXPECT_THAT(error(fmt::format("ID\tx\tuser\na\t1\t2\nb\t1\t{}\n", number)),
                AllOf(HasSubstr("t.tsv:3: ID 'b': column 'user' (3): numbers are read as float32"),
                      HasSubstr("cannot represent the whole number '" + std::string(number) + "' exactly")));
  }
  // Rounding any other number to the nearest float is accepted, and so is a whole number that is exact.
  EXPECT_THAT(numbers("ID\ta\tb\tc\td\te\n0\t16777216\t16777218\t16777217.5\t1.6777217e7\t-16777216\n"),
              ElementsAre(16777216, 16777218, 16777218, 16777216, -16777216));
  const std::string text = "ID,x\nb,\"16777217\"\n";
  EXPECT_THAT(error(text, csv()), HasSubstr("the whole number '16777217'"));
  const TextTable lists(folder_.write("l.tsv", "ID\tx\nb\t1 16777217\n"), {}, {{ragged()}});
  expect_error(ErrorKind::DataLoss, HasSubstr("the whole number '16777217'"), [&] { batch_of(lists); });
  const TextTable skipping(folder_.write("s.tsv", "ID\tx\na\t16777217\nb\t2\n"), {}, {{}}, BadRows::Skip);
  EXPECT_EQ(skipping.size(), 1);
  EXPECT_EQ(skipping.left_out().rows, 1);
}

// Comparing every name with all others would take minutes.
TEST_F(TextTableTest, opens_a_table_of_very_many_columns) {
  std::string text = "ID";
  std::string row = "a";
  for (int i = 0; i < 100000; ++i) {
    text += fmt::format("\tcolumn{}", i);
    row += "\t1";
  }
  EXPECT_EQ(table(text + "\n" + row + "\n").columns().size(), 100000U);
  EXPECT_THAT(error(text + "\tcolumn7\n" + row + "\t1\n"), HasSubstr("two columns are called 'column7'"));
}

TEST_F(TextTableTest, characters_of_numbers_do_not_separate_cells) {
  for (const char separator : {'.', '-', 'e', '7', '"', '\n'}) {
    TextFormat format = tsv();
    format.separator = separator;
    const std::string path = folder_.write("t.tsv", "ID.x\na.1\n");
    expect_error(ErrorKind::InvalidArgument, HasSubstr("cannot be the separator"),
                 [&] { TextTable(path, format, {}); });
  }
}

TEST_F(TextTableTest, fuzzed_bytes_do_no_harm) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = with_wrong_bytes("ID,x,y\na,1,2\n\"b\",\"3\",\nc,NA,1e5\n", random);
    try {
      numbers(text, csv());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::DataLoss) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("t.tsv"));
    }
  }
}

// Rows with errors are left out; the other rows can be read.
TEST_F(TextTableTest, fuzzed_lists_do_no_harm) {
  std::mt19937 random(8);
  for (int i = 0; i < 3000; ++i) {
    const std::string path =
        folder_.write("t.tsv", with_wrong_bytes("ID,x,y\na,1;2,[3 4]\n\"b\",\"3,4\",\nc,NA,7\n", random));
    const std::vector<TableKind> kinds = {ragged(),        padded(2),          indices(9),
                                          ragged(int64()), padded(2, int64()), ragged(categories(7))};
    const TableKind& kind = kinds[static_cast<size_t>(i) % kinds.size()];
    try {
      const TextTable table(path, csv(), {{kind}}, BadRows::Skip);
      EXPECT_EQ(table.left_out().rows == 0, table.left_out().why.empty());
      EXPECT_EQ(batch_of(table).size(), table.size());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::DataLoss) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("t.tsv"));
    }
  }
}

}  // namespace
}  // namespace tutti::data
