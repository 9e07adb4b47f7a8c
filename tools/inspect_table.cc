#include "tools/inspect_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/table.h"

namespace tutti {
namespace {

using data::Cells;
using data::Rows;
using data::TextFormat;

// Statistics of the cells of a column so far.
class Column {
 public:
  void add(std::string_view cell, const TextFormat& format) {
    cell = data::trimmed(cell);
    if (is_missing(cell, format)) {
      ++missing_;
    } else if (const auto number = parse_double(cell.starts_with('+') ? cell.substr(1) : cell);
               number && std::isfinite(*number)) {
      add(*number, parse_int(cell).has_value());
    } else {
      add_text(cell);
    }
  }
  void add_text(std::string_view text) {
    if (texts_++ == 0) text_ = text.substr(0, 20);
  }

  std::string line() const {
    const char* const type = texts_ > 0      ? (numbers_ > 0 ? "mixed" : "text")
                             : numbers_ == 0 ? "nothing"
                             : whole_        ? "integer"
                                             : "number";
    std::string values = fmt::format("{:<8} {:>10} {:>10}", type, numbers_ + texts_, missing_);
    // The range of ids, and so the length of their embedding, can be read off if it is exact.
    constexpr double kExactUpTo = 0x1p53;
    const bool is_exact = whole_ && std::abs(least_) <= kExactUpTo && std::abs(most_) <= kExactUpTo;
    if (numbers_ > 0 && is_exact)
      values += fmt::format(" {:>11.0f} {:>11.4g} {:>11.0f}", least_, mean_, most_);
    else if (numbers_ > 0)
      values += fmt::format(" {:>11.4g} {:>11.4g} {:>11.4g}", least_, mean_, most_);
    if (texts_ > 0)
      values += fmt::format("  '{}'{}", text_, texts_ > 1 ? fmt::format(" and {} more", texts_ - 1) : "");
    return values;
  }

 private:
  void add(double number, bool is_whole) {
    ++numbers_;
    whole_ = whole_ && is_whole;
    least_ = std::min(least_, number);
    most_ = std::max(most_, number);
    mean_ += (number - mean_) / static_cast<double>(numbers_);
  }

  int64_t missing_ = 0;
  int64_t numbers_ = 0;
  int64_t texts_ = 0;
  bool whole_ = true;
  double least_ = INFINITY;
  double most_ = -INFINITY;
  double mean_ = 0;
  std::string text_;  // the first text
};

// The contents of a file, column by column.
struct Contents {
  std::vector<std::string> names = {};
  std::vector<Column> columns = {};
};

Contents look_through_text(const std::string& path, const TextFormat& format,
                           const std::vector<std::string>& names) {
  Contents contents{names, std::vector<Column>(names.size())};
  const Rows rows(path, format.quotes, [&](const Rows::Row& row) {
    if (format.header && row.number == 0) return;
    size_t column = 0;
    Cells cells(row.text, format);
    for (; const auto cell = cells.next(); ++column) {
      if (column < contents.columns.size()) contents.columns[column].add(*cell, format);
    }
    if (column != contents.columns.size())
      fail(ErrorKind::DataLoss, "{}:{}: {} cells; expected {}, as in the {}", path, row.line, column,
           contents.columns.size(), format.header ? "header" : "first row");
  });
  return contents;
}

// Counts the elements of lists one by one.
Contents look_through_parquet(const std::string& path, const TextFormat& format,
                              const std::vector<std::string>& names) {
  Contents contents{names, std::vector<Column>(names.size())};
  data::each_parquet_text(
      path, [&](size_t column, std::string_view text) { contents.columns.at(column).add(text, format); });
  return contents;
}

}  // namespace

int inspect_table(const std::string& path, const TextFormat& format) {
  // Fails unless the IDs and names are valid for training.
  const auto table = data::open_table(path, format, {});
  const auto [names, columns] = data::is_parquet(path)
                                    ? look_through_parquet(path, format, table->all_columns())
                                    : look_through_text(path, format, table->all_columns());
  size_t width = 6;
  for (const std::string& name : names) width = std::max(width, name.size());
  fmt::print("{}: a table of {} rows and {} columns, {}; {}\n", path, table->size(), names.size(),
             human_bytes(std::filesystem::file_size(path)),
             table->has_ids() ? fmt::format("its IDs are in '{}'", table->id_column()) : "without IDs");
  fmt::print("  {:<{}} {:<8} {:>10} {:>10} {:>11} {:>11} {:>11}\n", "column", width, "type", "values",
             "missing", "min", "mean", "max");
  for (size_t i = 0; i < names.size(); ++i) fmt::print("  {:<{}} {}\n", names[i], width, columns[i].line());
  return 0;
}

}  // namespace tutti
