// Tests cells that are whole numbers or categories, in text.
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tutti/base/hashes.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/data/tables/test_tables.h"
#include "tutti/data/tables/text_table.h"

namespace tutti::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class IntegerTableTest : public ::testing::Test {
 protected:
  TextTable table(const std::string& text, const TableKind& kind, const TextFormat& format = {},
                  BadRows bad = BadRows::Error) const {
    return TextTable(folder_.write("t.tsv", text), format, {{kind}}, bad);
  }
  std::vector<int64_t> integers(const std::string& text, const TableKind& kind = int64(),
                                const TextFormat& format = {}) const {
    const TextTable all = table(text, kind, format);
    return cells_of<int64_t>(all, 0, all.size());
  }
  std::string lists(const std::string& cell, const TableKind& kind = ragged(int64())) const {
    return lists_of<int64_t>(table("ID\tx\na\t" + cell + "\n", kind), 0);
  }
  std::string error(const std::string& text, const TableKind& kind = int64(),
                    const TextFormat& format = {}) const {
    return error_of(ErrorKind::DataLoss, [&] { batch_of(table(text, kind, format)); });
  }

  const TestFolder folder_;
};

TEST_F(IntegerTableTest, has_all_numbers_of_an_int64) {
  const std::string text = fmt::format(
      "ID\ta\tb\tc\td\n1\t{}\t{}\t16777217\t-1\n2\t+7\t 8 \t007\t-0\n3\t9007199254740993\t0\t12.0\t-3.00\n",
      kMost, kLeast);
  EXPECT_THAT(integers(text),
              ElementsAre(kMost, kLeast, 16777217, -1, 7, 8, 7, 0, 9007199254740993, 0, 12, -3));
  EXPECT_THAT(integers("ID,a,b\n1,\"9007199254740993\",2\n", int64(), csv()),
              ElementsAre(9007199254740993, 2));
  EXPECT_EQ(batch_of(table(text, int64()))["0"].scalar_type(), torch::kLong);
}

// Numbers of any length are read as they were written, by the code for many numbers and by the code for one.
TEST_F(IntegerTableTest, has_the_numbers_that_were_written) {
  std::mt19937_64 random(2);
  std::vector<int64_t> expected;
  std::string text = "ID";
  constexpr int kColumns = 40;
  for (int column = 0; column < kColumns; ++column) text += fmt::format("\t{}", column);
  for (int row = 0; row < 500; ++row) {
    text += fmt::format("\n{}", row);
    for (int column = 0; column < kColumns; ++column) {
      const auto number = static_cast<int64_t>(random()) >> (random() % 64);
      expected.push_back(number);
      text += fmt::format("\t{}", number);
    }
  }
  EXPECT_EQ(integers(text), expected);
}

TEST_F(IntegerTableTest, takes_whole_numbers_only) {
  for (const std::string cell : {"1.5", "1e3", "0x10", "x", "1_000", "1 000", "-", "+-1", "--1", ".0", "1.",
                                 "1.0.0", "inf", "1,0", "\xEF\xBC\x91"}) {
    EXPECT_THAT(error("ID\tx\tuser\na\t1\t2\nb\t1\t" + cell + "\n"),
                AllOf(HasSubstr("t.tsv:3: ID 'b': column 'user' (3): '" + cell + "' is not a whole number")));
  }
  for (const std::string cell : {"9223372036854775808", "-9223372036854775809", "18446744073709551615",
                                 "123456789012345678901234567890", "9223372036854775808.0"}) {
    EXPECT_THAT(error("ID\tx\nb\t" + cell + "\n"),
                HasSubstr("t.tsv:2: ID 'b': column 'x' (2): '" + cell + "' does not fit into an int64"));
  }
}

TEST_F(IntegerTableTest, has_no_value_for_a_missing_number_unless_one_is_stated) {
  for (const char* cell : {"", "NA", "nan", " "}) {
    const std::string text = fmt::format("ID\tx\ty\na\t5\t{}\nb\t{}\t6\n", cell, cell);
    EXPECT_THAT(error(text), AllOf(HasSubstr("t.tsv:2: ID 'a': column 'y' (3): the whole number is missing"),
                                   HasSubstr("int64({.missing = -1})")));
    EXPECT_THAT(integers(text, int64({.missing = -1})), ElementsAre(5, -1, -1, 6));
    EXPECT_THAT(integers(text, int64({.missing = kMost})), ElementsAre(5, kMost, kMost, 6));
  }
  EXPECT_THAT(integers("ID\tx\na\t?\n", int64({.missing = 0}), {.missing = {"?"}}), ElementsAre(0));
  EXPECT_THAT(error("ID\tx\na\tNA\n", int64({.missing = 0}), {.missing = {"?"}}),
              HasSubstr("'NA' is not a whole number"));
}

TEST_F(IntegerTableTest, has_lists) {
  EXPECT_EQ(lists("1 16777217"), "[1, 16777217]");
  EXPECT_EQ(lists(fmt::format("[{}, {}]", kMost, kLeast)), fmt::format("[{}, {}]", kMost, kLeast));
  EXPECT_EQ(lists("3;4 ; +5"), "[3, 4, 5]");
  EXPECT_EQ(lists("3|4"), "[3, 4]");
  for (const char* none : {"", "[]", "NA", "[ ]"}) EXPECT_EQ(lists(none), "[]") << none;
  EXPECT_EQ(lists("1 NA 2", ragged(int64({.missing = 9}))), "[1, 9, 2]");
  for (const std::string cell : {"1 1.5", "1 x", "1 9223372036854775808", "1 NA", "1,,2", "1,", "[1"})
    EXPECT_THAT(error("ID\tx\na\t" + cell + "\n", ragged(int64())),
                HasSubstr("t.tsv:2: ID 'a': column 'x' (2): "))
        << cell;
  EXPECT_THAT(error("ID\tx\na\t1 2 3\n", padded(2, int64())), HasSubstr("3 values; the maximum is 2"));
}

TEST_F(IntegerTableTest, pads_lists_with_minus_one) {
  const TextTable t = table("ID\tx\ty\na\t1 2 3\t\nb\t4\t5 6\n", ragged(int64()));
  const Batch batch = batch_of(t);
  EXPECT_EQ(batch["0"].scalar_type(), torch::kLong);
  EXPECT_EQ(batch["0"].sizes().vec(), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_THAT(values_in<int64_t>(batch["0"]), ElementsAre(1, 2, 3, -1, -1, -1, 4, -1, -1, 5, 6, -1));
  EXPECT_THAT(values_in<int64_t>(batch["0 length"]), ElementsAre(3, 0, 1, 2));
  const TextTable four = table("ID\tx\na\t1 2 3\n", padded(4, int64()));
  EXPECT_THAT(values_in<int64_t>(batch_of(four)["0"]), ElementsAre(1, 2, 3, -1));
}

// Quotes and blanks around a text do not matter.
TEST_F(IntegerTableTest, has_categories_by_a_stated_hash) {
  EXPECT_EQ(bucket_of("foo", int64_t{1} << 62), static_cast<int64_t>(0x33bf00a859c4ba3fU));
  EXPECT_EQ(bucket_of("foo", 1), 0);
  const auto expected = [](std::string_view text) { return bucket_of(text, 1000); };
  const std::vector<int64_t> buckets = {expected("68fd1e64"), expected("7"), expected("ü b"),
                                        expected("007")};
  EXPECT_EQ(integers("ID\ta\tb\tc\td\n1\t68fd1e64\t7\t ü b \t007\n", categories(1000)), buckets);
  EXPECT_EQ(integers("ID,a,b,c,d\n1,\"68fd1e64\",\"7\",\"ü b\",007\n", categories(1000), csv()), buckets);
  EXPECT_EQ(integers("ID,a,b,c,d\n1,68fd1e64,7,ü b,\" 007\"\n", categories(1000), csv()), buckets);
  EXPECT_THAT(integers("ID,a\n1,\"say \"\"no\"\", twice\"\n", categories(1000), csv()),
              ElementsAre(expected("say \"no\", twice")));
}

// Compares with Python's csv and xxhash.
TEST_F(IntegerTableTest, has_the_categories_that_python_computes) {
  TUTTI_NEEDS_ORACLES();
  std::mt19937_64 random(4);
  const std::vector<std::string> pieces = {"a", "7", ",",  "\"\"", " ",    "\t", "\n",
                                           "ü", "€", "NA", "0x1f", "\r\n", ";",  "|"};
  std::string text = "ID,a,b,c\n";
  for (int row = 0; row < 300; ++row) {
    text += std::to_string(row);
    for (int column = 0; column < 3; ++column) {
      std::string cell;
      for (uint64_t piece = random() % 60; piece > 0; --piece) cell += pieces[random() % pieces.size()];
      const bool is_plain = cell.find_first_of(",\"\n\r") == std::string::npos;
      text += is_plain && random() % 2 == 0 ? "," + cell : ",\"" + cell + "\"";
    }
    text += "\n";
  }
  TextFormat format = csv();
  format.missing = {};
  for (const int64_t buckets : {int64_t{1000}, int64_t{1} << 40}) {
    const OracleAnswer answer =
        ask_oracle("check_categories.py", {folder_.write("t.tsv", text), std::to_string(buckets)});
    ASSERT_EQ(answer.status, 0) << answer.output;
    std::vector<int64_t> expected;
    for (const auto& row : nlohmann::json::parse(answer.output)) {
      for (const auto& bucket : row) expected.push_back(bucket.get<int64_t>());
    }
    EXPECT_EQ(integers(text, categories(buckets), format), expected);
  }
}

TEST_F(IntegerTableTest, has_a_stated_value_for_missing_categories) {
  const std::string text = "ID\ta\tb\n1\t\tNA\n2\t \tx\n";
  EXPECT_THAT(integers(text, categories(10)), ElementsAre(-1, -1, -1, bucket_of("x", 10)));
  EXPECT_THAT(integers(text, categories(10, {.missing = 10})), ElementsAre(10, 10, 10, bucket_of("x", 10)));
  TextFormat country;
  country.missing = {};
  EXPECT_THAT(integers(text, categories(10), country),
              ElementsAre(-1, bucket_of("NA", 10), -1, bucket_of("x", 10)));
}

TEST_F(IntegerTableTest, has_lists_of_categories) {
  EXPECT_EQ(lists("Action|Comedy", ragged(categories(100))),
            fmt::format("[{}, {}]", bucket_of("Action", 100), bucket_of("Comedy", 100)));
  EXPECT_EQ(lists("a NA", ragged(categories(100))), fmt::format("[{}, -1]", bucket_of("a", 100)));
  EXPECT_EQ(lists("", ragged(categories(100))), "[]");
}

TEST_F(IntegerTableTest, leaves_out_rows_with_errors_where_it_may) {
  const TextTable t =
      table("ID\tx\na\t1\nb\t1.5\nc\t\nd\t9223372036854775808\ne\t5\n", int64(), {}, BadRows::Skip);
  EXPECT_EQ(t.left_out().rows, 3);
  EXPECT_THAT(t.left_out().why, HasSubstr("t.tsv:3: ID 'b': column 'x' (2): '1.5' is not a whole number"));
  EXPECT_THAT(cells_of<int64_t>(t, 0, t.size()), ElementsAre(1, 5));
  EXPECT_EQ(t.row_in_file(1), 4);
}

class ViewsTest : public ::testing::Test {
 protected:
  TextTable table(const std::string& text, const std::vector<TableView>& views,
                  const TextFormat& format = {}) const {
    return TextTable(folder_.write("t.tsv", text), format, views);
  }
  const TestFolder folder_;
};

// A line of a click log: a label, numbers, some of which are missing, and categories.
TEST_F(ViewsTest, read_a_click_log_with_numbers_integers_and_categories) {
  const TextFormat criteo = {.header = false, .ids = Ids::RowNumbers};
  const TextTable t = table("0\t1\t\t5.5\t68fd1e64\t\n1\t-2\t3\t\t\ta73ee510\n",
                            {{dense(), {"1"}},
                             {int64({.missing = -1}), numbered(2, 3)},
                             {dense(), {"4"}},
                             {categories(1000), numbered(5, 6)},
                             {ragged(categories(7)), {"5"}}},
                            criteo);
  EXPECT_FALSE(t.has_ids());
  EXPECT_EQ(t.size(), 2);
  const Batch batch = batch_of(t);
  EXPECT_THAT(values_in<float>(batch["0"]), ElementsAre(0, 1));
  EXPECT_THAT(values_in<int64_t>(batch["1"]), ElementsAre(1, -1, -2, 3));
  EXPECT_THAT(values_in<float>(batch["2"].nan_to_num(-1)), ElementsAre(5.5F, -1));
  EXPECT_THAT(values_in<int64_t>(batch["3"]),
              ElementsAre(bucket_of("68fd1e64", 1000), -1, -1, bucket_of("a73ee510", 1000)));
  EXPECT_THAT(values_in<int64_t>(batch["4"]), ElementsAre(bucket_of("68fd1e64", 7), -1));
}

TEST_F(ViewsTest, have_their_columns_in_the_order_asked_for) {
  const std::string text = "ID\tw\tx\ty\tz\n7\t1\t2\t3\t4\n8\t5\t6\t7\t8\n";
  const TextTable t = table(text, {{dense(), {"z", "w"}},
                                   {int64(), {"y", "ID", "x"}},
                                   {ragged(), {"z", "x"}},
                                   {dense(), {}},
                                   {int64(), {"z"}}});
  const Batch batch = batch_of(t);
  EXPECT_THAT(values_in<float>(batch["0"]), ElementsAre(4, 1, 8, 5));
  EXPECT_THAT(values_in<int64_t>(batch["1"]), ElementsAre(3, 7, 2, 7, 8, 6));
  EXPECT_THAT(values_in<float>(batch["2"]), ElementsAre(4, 2, 8, 6));
  EXPECT_THAT(values_in<float>(batch["3"]), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values_in<int64_t>(batch["4"]), ElementsAre(4, 8));
}

// Text in columns that no view has, and rows in quotes, which are read cell by cell.
TEST_F(ViewsTest, do_not_look_at_other_columns) {
  const std::string text = "ID,name,n,other\na,Ann,1,x\nb,\"Bob, B.\",2,\"y\"\nc,,3,1e999\n";
  const TextTable t = table(text, {{int64(), {"n"}}}, csv());
  EXPECT_THAT(cells_of<int64_t>(t, 0, 3), ElementsAre(1, 2, 3));
  for (const char* row : {"d,D,4\n", "d,D,4,1,\n", "d,D,4,1,2\n", "d,\"D\",4\n", "d,\"D\",4,1,2\n", "d\n"})
    EXPECT_THAT(error_of(ErrorKind::DataLoss,
                         [&] {
                           batch_of(table(text + row, {{int64(), {"n"}}}, csv()));
                         }),
                HasSubstr("cells; expected 4, as in the header"));
}

TEST_F(ViewsTest, name_only_columns_that_there_are) {
  EXPECT_THAT(error_of(ErrorKind::DataLoss,
                       [&] {
                         table("ID\tuser\n1\t2\n", {{int64(), {"usr"}}});
                       }),
              AllOf(HasSubstr("t.tsv:1: there is no column 'usr', which the schema names"),
                    HasSubstr("did you mean 'user'")));
  EXPECT_THAT(error_of(ErrorKind::DataLoss,
                       [&] {
                         table("1\t2\n", {{int64(), {"3"}}}, {.header = false, .ids = Ids::RowNumbers});
                       }),
              HasSubstr("no column '3'"));
}

// Random tables, all kinds of cells and views with shared columns: the same as each column read alone.
TEST_F(ViewsTest, give_the_same_as_each_column_alone) {
  std::mt19937_64 random(9);
  const auto number = [&] { return static_cast<int64_t>(random() >> (24 + random() % 40)); };
  for (int round = 0; round < 60; ++round) {
    const auto columns = 1 + static_cast<int64_t>(random() % 8);
    TextFormat format = {.quotes = round % 3 == 0, .header = false, .ids = Ids::RowNumbers};
    std::string text;
    for (int row = 0; row < 20; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const std::string cell = std::to_string(number() % 16777216);
        text += column > 0 ? "\t" : "";
        text += format.quotes && random() % 4 == 0 ? "\"" + cell + "\"" : cell;
      }
      text += "\n";
    }
    const std::vector<TableKind> kinds = {dense(), int64(), categories(99), ragged(int64()), ragged()};
    std::vector<TableView> views;
    for (uint64_t view = 0; view < 1 + random() % 5; ++view) {
      std::vector<std::string> names = numbered(1, columns);
      if (random() % 2 == 0) std::shuffle(names.begin(), names.end(), random);
      names.resize(1 + random() % names.size());
      views.push_back({kinds[random() % kinds.size()], names});
    }
    const Batch all = batch_of(table(text, views, format));
    for (size_t view = 0; view < views.size(); ++view) {
      for (size_t i = 0; i < views[view].columns.size(); ++i) {
        const Batch alone = batch_of(table(text, {{views[view].kind, {views[view].columns[i]}}}, format));
        EXPECT_TRUE(
            all[std::to_string(view)].select(1, static_cast<int64_t>(i)).equal(alone["0"].select(1, 0)));
      }
    }
  }
}

}  // namespace
}  // namespace tutti::data
