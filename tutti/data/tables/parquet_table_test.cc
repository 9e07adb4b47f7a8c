#include <arrow/io/file.h>
#include <arrow/json/from_string.h>
#include <arrow/table.h>
#include <cmath>
#include <limits>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/file.h"
#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/data/tables/shards.h"
#include "tutti/data/tables/table.h"
#include "tutti/data/tables/table_facts.h"
#include "tutti/data/tables/table_source.h"
#include "tutti/data/tables/test_tables.h"

namespace tutti::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct ParquetColumn {
  std::string name;
  std::shared_ptr<arrow::DataType> type;
  std::string json;
};

// Writes a file with Arrow, with `rows_a_group` rows per group.
void write_parquet(const std::string& path, const std::vector<ParquetColumn>& columns,
                   int64_t rows_a_group = 1 << 20) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const ParquetColumn& column : columns) {
    fields.push_back(arrow::field(column.name, column.type));
    PARQUET_ASSIGN_OR_THROW(auto array, arrow::json::ArrayFromJSONString(column.type, column.json));
    arrays.push_back(array);
  }
  PARQUET_ASSIGN_OR_THROW(auto file, arrow::io::FileOutputStream::Open(path));
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  PARQUET_THROW_NOT_OK(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), file, rows_a_group));
  PARQUET_THROW_NOT_OK(file->Close());
}

class ParquetTableTest : public testing::Test {
 protected:
  std::unique_ptr<Table> table(const std::vector<ParquetColumn>& columns, int64_t rows_a_group = 1 << 20,
                               const TableKind& kind = {}, BadRows bad = BadRows::Error,
                               const TextFormat& format = {}) const {
    write_parquet(folder_ / "t.parquet", columns, rows_a_group);
    return open_parquet(folder_ / "t.parquet", format, {{kind}}, bad);
  }
  std::string error(const std::vector<ParquetColumn>& columns, const TableKind& kind = {},
                    const TextFormat& format = {}) const {
    return error_of(ErrorKind::DataLoss,
                    [&] { batch_of(*table(columns, 1 << 20, kind, BadRows::Error, format)); });
  }

  const TestFolder folder_;
};

TEST_F(ParquetTableTest, has_numbers_of_every_type_and_nulls) {
  const auto t = table({{"ID", arrow::utf8(), R"(["a", "b", "c"])"},
                        {"bool", arrow::boolean(), "[true, null, false]"},
                        {"int8", arrow::int8(), "[-128, null, 127]"},
                        {"uint8", arrow::uint8(), "[0, null, 255]"},
                        {"int16", arrow::int16(), "[-32768, null, 7]"},
                        {"uint16", arrow::uint16(), "[65535, null, 7]"},
                        {"int32", arrow::int32(), "[-16777216, null, 7]"},
                        {"uint32", arrow::uint32(), "[4294967040, null, 7]"},
                        {"int64", arrow::int64(), "[9007199254740992, null, 7]"},
                        {"uint64", arrow::uint64(), "[18446742974197923840, null, 7]"},
                        {"half", arrow::float16(), "[1.5, null, -0.25]"},
                        {"float", arrow::float32(), "[0.1, null, -2e38]"},
                        {"double", arrow::float64(), "[0.1, null, 1e-300]"},
                        {"nothing", arrow::null(), "[null, null, null]"}},
                       2);
  ASSERT_EQ(t->size(), 3);
  EXPECT_EQ(t->id(2), "c");
  EXPECT_EQ(t->columns().size(), 13);
  EXPECT_EQ(t->columns()[11], "double");
  std::vector<float> first = cells_of(*t, 0, 1);
  EXPECT_TRUE(std::isnan(first.back()));
  first.pop_back();
  EXPECT_EQ(first, (std::vector<float>{1, -128, 0, -32768, 65535, -16777216, 4294967040.F, 9007199254740992.F,
                                       18446742974197923840.F, 1.5, 0.1F, 0.1F}));
  for (const float number : cells_of(*t, 1, 2)) EXPECT_TRUE(std::isnan(number));
  std::vector<float> last = cells_of(*t, 2, 3);
  last.pop_back();
  EXPECT_EQ(last, (std::vector<float>{0, 127, 255, 7, 7, 7, 7, 7, 7, -0.25, -2e38F, 0}));
}

TEST_F(ParquetTableTest, tells_its_bytes_while_ids_are_read) {
  write_parquet(folder_ / "t.parquet",
                {{"name", arrow::utf8(), R"(["a", "b", "c"])"}, {"x", arrow::int64(), "[1, 2, 3]"}}, 1);
  const auto size = static_cast<int64_t>(FileReader(folder_ / "t.parquet").size());
  for (const Ids ids : {Ids::Column, Ids::RowNumbers}) {
    int64_t bytes = 0;
    open_parquet(folder_ / "t.parquet", {.ids = ids}, {}, BadRows::Error,
                 [&](int64_t more) { bytes += more; });
    EXPECT_EQ(bytes, size);
  }
}

// Several threads read groups of different sizes in any order.
TEST_F(ParquetTableTest, gives_every_row_whatever_the_groups_and_the_order) {
  constexpr int64_t kRows = 1000;
  std::vector<std::string> ids;
  std::vector<int64_t> x;
  std::vector<double> y;
  for (int64_t i = 0; i < kRows; ++i) {
    ids.push_back(fmt::format("\"m{}\"", i));
    x.push_back(i);
    y.push_back(static_cast<double>(i) / 2);
  }
  for (const int64_t group : {1, 7, 100, 5000}) {
    const auto t = table({{"x", arrow::int64(), fmt::format("[{}]", fmt::join(x, ","))},
                          {"name", arrow::utf8(), fmt::format("[{}]", fmt::join(ids, ","))},
                          {"y", arrow::float64(), fmt::format("[{}]", fmt::join(y, ","))}},
                         group, {}, BadRows::Error, {.id = "name"});
    ASSERT_EQ(t->columns(), (std::vector<std::string>{"x", "y"}));
    ASSERT_EQ(t->size(), kRows);
    std::vector<std::thread> threads;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      threads.emplace_back([&, seed] {
        std::mt19937_64 random(seed);
        for (int i = 0; i < 200; ++i) {
          const auto begin = static_cast<int64_t>(random() % kRows);
          const auto end = std::min<int64_t>(kRows, begin + 1 + static_cast<int64_t>(random() % 300));
          const auto numbers = cells_of(*t, begin, end);
          for (int64_t row = begin; row < end; ++row) {
            EXPECT_EQ(numbers[static_cast<size_t>(2 * (row - begin))], static_cast<float>(row));
            EXPECT_EQ(numbers[static_cast<size_t>(2 * (row - begin) + 1)], static_cast<float>(row) / 2);
          }
          EXPECT_EQ(t->id(begin), fmt::format("m{}", begin));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(ParquetTableTest, takes_ids_that_are_numbers_or_coded) {
  const auto numbered = table({{"ID", arrow::int32(), "[3, -1]"}, {"x", arrow::float32(), "[1, 2]"}});
  EXPECT_EQ(numbered->id(1), "-1");
  const auto coded = table({{"ID", arrow::dictionary(arrow::int32(), arrow::utf8()), R"(["b", "a"])"},
                            {"x", arrow::float32(), "[1, 2]"}});
  EXPECT_EQ(coded->id(0), "b");
  const auto large = table({{"ID", arrow::large_utf8(), R"(["b", "a"])"}, {"x", arrow::float32(), "[1, 2]"}});
  EXPECT_EQ(large->id(1), "a");
  const auto views = table({{"ID", arrow::utf8_view(), R"(["b", "a"])"}, {"x", arrow::float32(), "[1, 2]"}});
  EXPECT_EQ(views->id(1), "a");
}

TEST_F(ParquetTableTest, has_lists_as_their_kind_says) {
  const auto t =
      table({{"ID", arrow::int32(), "[1, 2, 3, 4]"},
             {"list", arrow::list(arrow::int32()), "[[1, 2], [], null, [5, null]]"},
             {"large", arrow::large_list(arrow::float64()), "[[0.5], [1.5], [2.5], [3.5, 4.5]]"},
             {"fixed", arrow::fixed_size_list(arrow::float32(), 2), "[[1, 2], [3, 4], null, [5, 6]]"},
             {"one", arrow::float32(), "[1, 2, 3, 4]"},
             {"none", arrow::list(arrow::null()), "[[], [], [], [null]]"}},
            3, ragged());
  EXPECT_EQ(outline_of(t->path(), {}).rows, 4);
  EXPECT_EQ(lists_of(*t, 3), "[5, nan] [3.5, 4.5] [5, 6] [4] [nan]");
  EXPECT_EQ(lists_of(*t, 0), "[1, 2] [0.5] [1, 2] [1] []");
  EXPECT_EQ(lists_of(*t, 1), "[] [1.5] [3, 4] [2] []");
  EXPECT_EQ(lists_of(*t, 2), "[] [2.5] [] [3] []");
}

TEST_F(ParquetTableTest, whole_numbers_that_no_float_holds_are_an_error) {
  const ParquetColumn ids{"ID", arrow::utf8(), R"(["a", "b"])"};
  const auto refused = [&](const std::string& number) {
    return AllOf(HasSubstr("row 2 (ID 'b'): column 'n': numbers are read as float32"),
                 HasSubstr("cannot represent the whole number " + number + " exactly"));
  };
  EXPECT_THAT(error({ids, {"n", arrow::int64(), "[16777216, 16777217]"}}), refused("16777217"));
  EXPECT_THAT(error({ids, {"n", arrow::int32(), "[-16777216, -16777217]"}}), refused("-16777217"));
  EXPECT_THAT(error({ids, {"n", arrow::uint32(), "[4294967040, 4294967295]"}}), refused("4294967295"));
  EXPECT_THAT(error({ids, {"n", arrow::uint64(), "[1, 18446744073709551615]"}}),
              refused("18446744073709551615"));
  EXPECT_THAT(error({ids, {"n", arrow::list(arrow::int64()), "[[1], [2, 16777217]]"}}, ragged()),
              refused("16777217"));
  // Whole numbers that are exact as floats are accepted, and so are columns of floats.
  const auto held = table({{"ID", arrow::utf8(), R"(["a", "b"])"},
                           {"n", arrow::int64(), "[16777218, -9223372036854775808]"},
                           {"x", arrow::float64(), "[16777217, null]"}});
  const std::vector<float> numbers = cells_of(*held, 0, 2);
  EXPECT_EQ(numbers[0], 16777218.0F);
  EXPECT_EQ(numbers[1], 16777216.0F);
  EXPECT_EQ(numbers[2], -9223372036854775808.0F);
}

TEST_F(ParquetTableTest, says_what_is_wrong_with_row_column_and_id) {
  const ParquetColumn ids{"ID", arrow::utf8(), R"(["a", "b"])"};
  const ParquetColumn x{"x", arrow::float32(), "[1, 2]"};
  EXPECT_THAT(error({ids, {"s", arrow::utf8(), R"(["1", "2"])"}}),
              AllOf(HasSubstr("t.parquet"), HasSubstr("column 's' has type string; expected numbers")));
  EXPECT_THAT(error({ids, {"l", arrow::list(arrow::int32()), "[[1], [2]]"}}), HasSubstr("expected numbers"));
  EXPECT_THAT(error({ids, {"d", arrow::date32(), "[1, 2]"}}, ragged()), HasSubstr("or lists of numbers"));
  EXPECT_THAT(error({ids, {"d", arrow::float64(), "[1, 1e300]"}}),
              HasSubstr("row 2 (ID 'b'): column 'd': 1e+300 is too large for a float32"));
  EXPECT_THAT(error({ids, {"l", arrow::list(arrow::float64()), "[[1e300], [2]]"}}, ragged()),
              HasSubstr("row 1 (ID 'a'): column 'l': 1e+300 is too large"));
  EXPECT_THAT(error({ids, {"l", arrow::list(arrow::int32()), "[[1], [1, 2, 3]]"}}, padded(2)),
              HasSubstr("row 2 (ID 'b'): column 'l': the list has 3 numbers; the maximum is 2"));
  EXPECT_THAT(error({ids, {"l", arrow::list(arrow::int32()), "[[1], [4]]"}}, indices(4)),
              HasSubstr("4 is not an index from 0 to 3"));
  EXPECT_THAT(error({{"ID", arrow::utf8(), R"(["a", "a"])"}, x}),
              HasSubstr("row 2: the ID 'a' already occurs in row 1"));
  EXPECT_THAT(error({{"ID", arrow::utf8(), R"(["a", null])"}, x}), HasSubstr("row 2: the ID is empty"));
  EXPECT_THAT(error({{"ID", arrow::float32(), "[1, 2]"}, x}),
              HasSubstr("type float; expected text or whole"));
  EXPECT_THAT(error({ids, x}, {}, {.id = "Id"}),
              AllOf(HasSubstr("there is no column 'Id'"), HasSubstr("ID")));
  EXPECT_THAT(error({ids, x, x}), HasSubstr("two columns are called 'x'"));
}

TEST_F(ParquetTableTest, leaves_out_bad_rows_where_it_may) {
  const auto t = table({{"ID", arrow::utf8(), R"(["a", null, "c", "d", "a", "f"])"},
                        {"x", arrow::float64(), "[1, 2, 3, 1e300, 5, 6]"}},
                       2, {}, BadRows::Skip);
  EXPECT_EQ(t->rows_in_file(), 6);
  EXPECT_EQ(t->left_out().rows, 3);
  EXPECT_THAT(t->left_out().why, HasSubstr("row 4: column 'x'"));
  ASSERT_EQ(t->size(), 4);  // the second 'a' cannot be found
  EXPECT_EQ(t->id(3), "f");
  EXPECT_THAT(t->place_of(3), ::testing::EndsWith(".parquet, row 6"));
  EXPECT_EQ(cells_of(*t, 0, 4), (std::vector<float>{1, 3, 5, 6}));
}

TEST_F(ParquetTableTest, may_have_no_columns_or_no_rows) {
  for (const BadRows bad : {BadRows::Error, BadRows::Skip}) {
    for (const TableKind& kind : {dense(), ragged()}) {
      const auto ids = table({{"ID", arrow::utf8(), R"(["a", "b"])"}}, 1, kind, bad);
      EXPECT_EQ(ids->size(), 2);
      EXPECT_TRUE(ids->columns().empty());
      EXPECT_EQ(batch_of(*ids)["0"].numel(), 0);
      const auto none = table({{"ID", arrow::utf8(), "[]"}, {"x", arrow::float32(), "[]"}}, 1, kind, bad);
      EXPECT_EQ(none->size(), 0);
      EXPECT_EQ(none->columns(), std::vector<std::string>{"x"});
    }
  }
}

TEST_F(ParquetTableTest, says_that_a_file_is_none_or_is_cut_off) {
  const std::vector<ParquetColumn> columns = {{"ID", arrow::utf8(), R"(["a", "b"])"},
                                              {"x", arrow::float32(), "[1, 2]"}};
  write_parquet(folder_ / "whole.parquet", columns);
  const std::string bytes = read_file(folder_ / "whole.parquet");
  for (const std::string& text : {std::string(), std::string("ID\tx\na\t1\n"),
                                  bytes.substr(0, bytes.size() - 1), bytes.substr(bytes.size() / 2)}) {
    const std::string path = folder_.write("broken.parquet", text);
    EXPECT_THAT(error_of(ErrorKind::DataLoss, [&] { open_parquet(path, {}, {{}}, BadRows::Error); }),
                HasSubstr(path));
  }
  EXPECT_THAT(error_of(ErrorKind::InvalidArgument,
                       [&] { open_parquet(folder_ / "none.parquet", {}, {{}}, BadRows::Error); }),
              HasSubstr("none.parquet"));
}

TEST_F(ParquetTableTest, fuzzed_bytes_do_no_harm) {
  write_parquet(folder_ / "t.parquet",
                {{"ID", arrow::utf8(), R"(["a", "b", "c", "d"])"},
                 {"x", arrow::float32(), "[1, null, 3, 4]"},
                 {"l", arrow::list(arrow::int32()), "[[1], [1, 2, 3], [], [7]]"}},
                2);
  const std::string whole = read_file(folder_ / "t.parquet");
  std::mt19937_64 random(6);
  int errors = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bytes = whole;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const TableKind kind = i % 2 == 0 ? ragged() : ragged(int64({.missing = 0}));
      batch_of(*open_parquet(folder_.write("fuzzed.parquet", bytes), {}, {{kind}}, BadRows::Error));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::DataLoss) << error.what();
      ++errors;
    }
  }
  EXPECT_GT(errors, 0);
}

TEST_F(ParquetTableTest, has_integers_of_every_type_exactly) {
  const std::vector<ParquetColumn> columns = {
      {"ID", arrow::utf8(), R"(["a", "b"])"},
      {"bool", arrow::boolean(), "[true, false]"},
      {"int8", arrow::int8(), "[-128, 127]"},
      {"uint8", arrow::uint8(), "[0, 255]"},
      {"int16", arrow::int16(), "[-32768, 32767]"},
      {"uint16", arrow::uint16(), "[65535, 0]"},
      {"int32", arrow::int32(), "[-2147483648, 16777217]"},
      {"uint32", arrow::uint32(), "[4294967295, 16777217]"},
      {"int64", arrow::int64(), "[-9223372036854775808, 9223372036854775807]"},
      {"uint64", arrow::uint64(), "[9223372036854775807, 9007199254740993]"},
      {"half", arrow::float16(), "[-7.0, 2048.0]"},
      {"float", arrow::float32(), "[16777216, -16777216]"},
      {"double", arrow::float64(), "[9007199254740992, -9007199254740992]"}};
  const auto t = table(columns, 1, int64());
  EXPECT_EQ(cells_of<int64_t>(*t, 0, 1),
            (std::vector<int64_t>{1, -128, 0, -32768, 65535, -2147483648, 4294967295,
                                  std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                                  -7, 16777216, 9007199254740992}));
  EXPECT_EQ(
      cells_of<int64_t>(*t, 1, 2),
      (std::vector<int64_t>{0, 127, 255, 32767, 0, 16777217, 16777217, std::numeric_limits<int64_t>::max(),
                            9007199254740993, 2048, -16777216, -9007199254740992}));
}

TEST_F(ParquetTableTest, says_which_number_is_no_int64) {
  const ParquetColumn ids{"ID", arrow::utf8(), R"(["a", "b"])"};
  const auto refused = [&](const std::shared_ptr<arrow::DataType>& type, const std::string& number,
                           const std::string& why) {
    const auto says = AllOf(HasSubstr("row 2 (ID 'b'): column 'n': "), HasSubstr(why));
    EXPECT_THAT(error({ids, {"n", type, "[1, " + number + "]"}}, int64()), says);
    EXPECT_THAT(error({ids, {"n", arrow::list(type), "[[1], [7, " + number + ", 8]]"}}, ragged(int64())),
                says);
    const auto skipping = table({ids, {"n", type, "[1, " + number + "]"}}, 1, int64(), BadRows::Skip);
    EXPECT_EQ(skipping->size(), 1);
  };
  refused(arrow::uint64(), "9223372036854775808", "9223372036854775808 does not fit into an int64");
  refused(arrow::float64(), "1.5", "1.5 is not a whole number");
  refused(arrow::float64(), "9007199254740994", "9007199254740994 is too large to be exact as a float64");
  refused(arrow::float64(), "-1e300", "is too large to be exact");
  refused(arrow::float64(), "Inf", "is too large to be exact");
  refused(arrow::float32(), "16777218", "16777218 is too large to be exact as a float32");
  refused(arrow::int32(), "null", "the whole number is missing");
  refused(arrow::float64(), "NaN", "the whole number is missing");
}

TEST_F(ParquetTableTest, has_stated_values_for_missing_integers) {
  const auto t = table({{"ID", arrow::int32(), "[1, 2, 3]"},
                        {"n", arrow::int64(), "[7, null, 9]"},
                        {"x", arrow::float64(), "[7, NaN, null]"},
                        {"none", arrow::null(), "[null, null, null]"}},
                       2, int64({.missing = -1}));
  EXPECT_EQ(cells_of<int64_t>(*t, 0, 3), (std::vector<int64_t>{7, 7, -1, -1, -1, -1, 9, -1, -1}));
  const std::vector<ParquetColumn> lists = {
      {"ID", arrow::int32(), "[1, 2, 3]"},
      {"l", arrow::list(arrow::int64()), "[[16777217, null], [], null]"},
      {"f", arrow::fixed_size_list(arrow::int64(), 1), "[[5], null, [null]]"},
      {"one", arrow::int64(), "[6, null, 9]"}};
  const auto padded = table(lists, 2, ragged(int64({.missing = 0})));
  EXPECT_EQ(lists_of<int64_t>(*padded, 0), "[16777217, 0] [5] [6]");
  EXPECT_EQ(lists_of<int64_t>(*padded, 1), "[] [] [0]");
  EXPECT_EQ(lists_of<int64_t>(*padded, 2), "[] [0] [9]");
  // The element of a null list is not in any row.
  const std::vector<ParquetColumn> whole = {lists[0], {"f", lists[2].type, "[[5], null, [7]]"}};
  EXPECT_EQ(lists_of<int64_t>(*table(whole, 2, ragged(int64())), 1), "[]");
  const auto sparse =
      table({lists[0], {"l", arrow::list(arrow::int64()), "[[1, null, 3], [null], []]"}}, 2, indices(4));
  EXPECT_EQ(batch_of(*sparse)["0"].to_dense().sum(1).equal(torch::tensor({2.0F, 0.0F, 0.0F})), true);
}

TEST_F(ParquetTableTest, has_the_same_categories_as_text) {
  const std::string tsv =
      folder_.write("t.tsv", "ID\ta\tb\tc\n1\tx y\tAction|Sci-Fi\t7\n2\t\t\t-12\n3\tNA\tDrama\t0\n");
  const std::vector<TableView> views = {{categories(1000), {"a"}},
                                        {ragged(categories(500, {.missing = 9})), {"b"}},
                                        {categories(99), {"c"}},
                                        {int64(), {"c"}}};
  const Batch expected = batch_of(*open_table(tsv, {}, views));
  for (const auto& text : {arrow::utf8(), arrow::large_utf8(), arrow::utf8_view(),
                           arrow::dictionary(arrow::int8(), arrow::utf8())}) {
    const auto elements = text->id() == arrow::Type::STRING_VIEW ? arrow::utf8() : text;
    write_parquet(folder_ / "t.parquet",
                  {{"ID", arrow::int32(), "[1, 2, 3]"},
                   {"a", text, R"([" x y", null, "NA"])"},
                   {"b", arrow::list(elements), R"([["Action", "Sci-Fi"], null, ["Drama"]])"},
                   {"c", arrow::int16(), "[7, -12, 0]"}},
                  2);
    const Batch found = batch_of(*open_table(folder_ / "t.parquet", {}, views));
    for (const auto& [name, tensor] : expected.tensors())
      EXPECT_TRUE(found[name].equal(tensor)) << name << *text;
  }
  const ParquetColumn ids{"ID", arrow::utf8(), R"(["a", "b"])"};
  EXPECT_THAT(error({ids, {"x", arrow::float64(), "[1, 2]"}}, categories(5)),
              HasSubstr("'x' has type double; expected texts or whole numbers"));
  EXPECT_THAT(error({ids, {"x", arrow::list(arrow::utf8()), R"([["y"], []])"}}, categories(5)),
              HasSubstr("expected texts or whole numbers"));
  EXPECT_THAT(error({ids, {"x", arrow::utf8(), R"(["7", "8"])"}}, int64()), HasSubstr("expected numbers"));
}

// Columns that no view has are not read and may have any type.
TEST_F(ParquetTableTest, has_views_of_some_columns_and_needs_no_ids) {
  write_parquet(folder_ / "t.parquet",
                {{"when", arrow::date32(), "[1, 2, 3, 4, 5]"},
                 {"user", arrow::int64(), "[16777217, 2, 3, 4, 5]"},
                 {"s", arrow::struct_({arrow::field("i", arrow::int32())}), "[null, null, null, null, null]"},
                 {"stars", arrow::float64(), "[1.5, 2.5, 1e300, 4.5, 5.5]"},
                 {"items", arrow::list(arrow::int32()), "[[1], [], [3, 4], null, [5]]"}},
                2);
  const TextFormat format = {.ids = Ids::RowNumbers};
  const std::vector<TableView> dense_views = {{int64(), {"user"}}, {dense(), {"user"}}};
  EXPECT_THAT(
      error_of(ErrorKind::DataLoss,
               [&] { batch_of(*open_parquet(folder_ / "t.parquet", format, dense_views, BadRows::Error)); }),
      HasSubstr("row 1: column 'user': numbers are read as float32"));
  const std::vector<TableView> views = {
      {dense(), {"stars"}}, {ragged(int64()), {"items"}}, {int64(), {"user"}}, {categories(7), {"user"}}};
  const auto t = open_parquet(folder_ / "t.parquet", format, views, BadRows::Skip);
  EXPECT_FALSE(t->has_ids());
  EXPECT_EQ(t->size(), 4);
  EXPECT_THAT(t->left_out().why, HasSubstr("row 3: column 'stars'"));
  const Batch batch = batch_of(*t);
  EXPECT_EQ(values_in<float>(batch["0"]), (std::vector<float>{1.5, 2.5, 4.5, 5.5}));
  EXPECT_EQ(values_in<int64_t>(batch["1"]), (std::vector<int64_t>{1, -1, -1, 5}));
  EXPECT_EQ(values_in<int64_t>(batch["2"]), (std::vector<int64_t>{16777217, 2, 4, 5}));
  EXPECT_EQ(values_in<int64_t>(batch["3"])[0], bucket_of("16777217", 7));
  EXPECT_EQ(t->id(2), "3");
  // Two dense views, read in any order.
  const std::vector<TableView> two = {{int64(), {"user"}}, {categories(9), {"user"}}};
  const auto both = open_parquet(folder_ / "t.parquet", format, two, BadRows::Error);
  EXPECT_EQ(cells_of<int64_t>(*both, 1, 5), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(cells_of<int64_t>(*both, 4, 5, 1), (std::vector<int64_t>{bucket_of("5", 9)}));
  EXPECT_THAT(error_of(ErrorKind::DataLoss,
                       [&] {
                         open_parquet(folder_ / "t.parquet", format, {{dense(), {"star"}}}, BadRows::Error);
                       }),
              AllOf(HasSubstr("no column 'star'"), HasSubstr("did you mean 'stars'")));
}

TEST_F(ParquetTableTest, has_texts_for_whoever_looks_at_it) {
  write_parquet(folder_ / "t.parquet", {{"s", arrow::utf8(), R"(["x", null])"},
                                        {"half", arrow::float16(), "[1.5, 2.0]"},
                                        {"l", arrow::list(arrow::int64()), "[[1, 16777217], null]"},
                                        {"day", arrow::date32(), "[0, 1]"}});
  std::vector<std::string> texts(4);
  each_parquet_text(folder_ / "t.parquet", [&](size_t column, std::string_view text) {
    texts.at(column) += fmt::format("<{}>", text);
  });
  EXPECT_EQ(texts,
            (std::vector<std::string>{"<x><>", "<1.5><2>", "<1><16777217><>", "<1970-01-01><1970-01-02>"}));
}

// One table is text and one is Parquet: the examples are the same as from text alone.
TEST_F(ParquetTableTest, is_joined_like_any_other) {
  for (const char* shard : {"all/s0", "all/s1"}) make_directories(folder_ / shard);
  folder_.write("all/s0/d.tsv", "ID\tx\ty\na\t1\t2\nb\t3\t4\n");
  folder_.write("all/s1/d.tsv", "ID\tx\ty\nc\t5\t\n");
  const auto write = [&](const std::string& shard, const std::string& ids, const std::string& z) {
    write_parquet(folder_ / ("all/" + shard + "/t.parquet"),
                  {{"ID", arrow::utf8(), ids}, {"z", arrow::int64(), z}});
  };
  write("s0", R"(["b", "a"])", "[30, 10]");
  write("s1", R"(["c"])", "[50]");
  const Schema schema = {{"desc", {"d.tsv"}}, {"targ", {"t.parquet"}}};
  for (const uint64_t memory : {uint64_t{0}, uint64_t{1} << 20}) {
    const auto tables = table_source(shards_in(folder_ / "all"), schema, {.memory = memory});
    const Batch batch = tables->read(std::vector<int64_t>{2, 0, 1});
    EXPECT_TRUE(at::equal(batch["targ"], at::tensor({50.F, 10.F, 30.F}).reshape({3, 1})));
    EXPECT_EQ(batch["desc"][1][0].item<float>(), 1);
  }
  const TableStatistics statistics = statistics_of(folder_ / "all/s0/t.parquet", {});
  ASSERT_EQ(statistics.columns.size(), 1);
  EXPECT_EQ(statistics.columns[0].mean, 20);
  EXPECT_EQ(outline_of(folder_ / "all/s0/t.parquet", {}).rows, 2);
}

}  // namespace
}  // namespace tutti::data
