#include "tutti/data/tables/rows.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Returns lines and texts of the rows, and checks that reading them by number gives the same.
std::vector<std::pair<int64_t, std::string>> rows_of(const std::string& text, bool quotes = false) {
  const TestFolder folder;
  std::vector<std::pair<int64_t, std::string>> met;
  const Rows rows(folder.write("t.tsv", text), quotes,
                  [&](const Rows::Row& row) { met.emplace_back(row.line, std::string(row.text)); });
  EXPECT_EQ(rows.size(), static_cast<int64_t>(met.size()));
  std::string buffer;
  for (int64_t number = rows.size() - 1; number >= 0; --number) {
    const Rows::Row row = rows.read(number, buffer);
    EXPECT_EQ(std::pair(row.line, std::string(row.text)), met[static_cast<size_t>(number)]);
    EXPECT_EQ(rows.line_of(number), row.line);
  }
  for (int64_t begin = 0; begin <= rows.size(); ++begin) {
    for (int64_t end = begin; end <= rows.size(); ++end) {
      auto expected = met.begin() + begin;
      rows.read(begin, end, buffer, [&](const Rows::Row& row) {
        EXPECT_EQ(std::pair(row.line, std::string(row.text)), *expected++);
        EXPECT_EQ(row.number, begin + (expected - met.begin() - begin) - 1);
      });
      EXPECT_EQ(expected - met.begin(), end);
    }
  }
  return met;
}

TEST(Rows, end_with_their_lines) {
  EXPECT_THAT(rows_of("a\tb\n1\t2\n"), ElementsAre(Pair(1, "a\tb"), Pair(2, "1\t2")));
  EXPECT_THAT(rows_of("a\r\nb"), ElementsAre(Pair(1, "a"), Pair(2, "b")));
  EXPECT_THAT(rows_of("\xEF\xBB\xBF"
                      "a\nb\n\n\r\n"),
              ElementsAre(Pair(1, "a"), Pair(2, "b")));
  EXPECT_THAT(rows_of(""), ElementsAre());
  EXPECT_THAT(rows_of("\n\n"), ElementsAre());
}

TEST(Rows, go_on_over_line_ends_in_quotes) {
  EXPECT_THAT(rows_of("a,\"b\nc\",d\ne\n", true), ElementsAre(Pair(1, "a,\"b\nc\",d"), Pair(3, "e")));
  EXPECT_THAT(rows_of("\"say \"\"no\n\"\"\"\nb", true),
              ElementsAre(Pair(1, "\"say \"\"no\n\"\"\""), Pair(3, "b")));
  EXPECT_THAT(rows_of("a\"b\nc\n"), ElementsAre(Pair(1, "a\"b"), Pair(2, "c")));
}

TEST(Rows, of_a_large_file_are_found_though_not_every_place_is_kept) {
  std::string text;
  constexpr int kRows = 5000000;
  for (int i = 0; i < kRows; ++i) text += fmt::format("{}\n", i);
  const TestFolder folder;
  const Rows rows(folder.write("t.tsv", text), false, [](const Rows::Row&) {});
  ASSERT_EQ(rows.size(), kRows);
  std::string buffer;
  for (const int64_t number : {0, 1, 4, 5, 2097151, 2097152, 2097153, 4194303, 4194304, 4999998, 4999999}) {
    const Rows::Row row = rows.read(number, buffer);
    EXPECT_EQ(row.text, std::to_string(number));
    EXPECT_EQ(row.line, number + 1);
    EXPECT_EQ(rows.line_of(number), row.line);
  }
  // Quoted cells may have line ends between two stored positions.
  const Rows quoted(folder / "t.tsv", true, [](const Rows::Row&) {});
  EXPECT_EQ(quoted.line_of(2097152), 2097153);
  EXPECT_EQ(quoted.line_of(2097153), std::nullopt);
  for (const auto& [begin, end] : {std::pair(0, kRows), {1, 9}, {2097151, 2500001}, {4999990, 5000000}}) {
    int64_t next = begin;
    rows.read(begin, end, buffer, [&](const Rows::Row& row) {
      if (row.text != std::to_string(next) || row.line != next + 1) ADD_FAILURE() << row.text << " " << next;
      ++next;
    });
    EXPECT_EQ(next, end);
  }
}

TEST(Rows, that_are_none_are_named) {
  const auto error = [](const std::string& text, bool quotes = false) {
    return error_of(ErrorKind::DataLoss, [&] { rows_of(text, quotes); });
  };
  EXPECT_THAT(error("a\n\nb\n"), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("empty line")));
  EXPECT_THAT(error(std::string("a\nb\0c\n", 6)), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("NUL")));
  std::string endless = "a\n\"";
  endless.append(size_t{65} << 20, 'x');
  EXPECT_THAT(error(endless, true), AllOf(HasSubstr("t.tsv:2:"), HasSubstr("64 MiB"), HasSubstr("quote")));
}

TEST(Rows, of_a_file_that_changes_meanwhile_are_missed) {
  const TestFolder folder;
  const std::string path = folder.write("t.tsv", "a\nb\nc\n");
  const Rows rows(path, false, [](const Rows::Row&) {});
  folder.write("t.tsv", "a\n");
  std::string buffer;
  EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { rows.read(2, buffer); }), HasSubstr("t.tsv"));
}

}  // namespace
}  // namespace tutti::data
