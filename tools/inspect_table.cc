#include "tools/inspect_table.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/rows.h"
#include "tutti/data/tables/text_table.h"

namespace tutti {
namespace {

using data::Cells;
using data::Rows;
using data::TextFormat;

// What has been met in a column so far.
class Column {
 public:
  void add(std::string_view cell, const TextFormat& format) {
    cell = data::trimmed(cell);
    if (is_missing(cell, format)) {
      ++missing_;
    } else if (const auto number = parse_double(cell.starts_with('+') ? cell.substr(1) : cell);
               number && std::isfinite(*number)) {
      ++numbers_;
      whole_ = whole_ && parse_int(cell).has_value();
      least_ = std::min(least_, *number);
      most_ = std::max(most_, *number);
      mean_ += (*number - mean_) / static_cast<double>(numbers_);
    } else {
      if (texts_++ == 0) text_ = cell.substr(0, 20);
    }
  }

  std::string line() const {
    const char* const type = texts_ > 0      ? (numbers_ > 0 ? "mixed" : "text")
                             : numbers_ == 0 ? "nothing"
                             : whole_        ? "integer"
                                             : "number";
    std::string values = fmt::format("{:<8} {:>10} {:>10}", type, numbers_ + texts_, missing_);
    if (numbers_ > 0) values += fmt::format(" {:>11.4g} {:>11.4g} {:>11.4g}", least_, mean_, most_);
    if (texts_ > 0)
      values += fmt::format("  '{}'{}", text_, texts_ > 1 ? fmt::format(" and {} more", texts_ - 1) : "");
    return values;
  }

 private:
  int64_t missing_ = 0;
  int64_t numbers_ = 0;
  int64_t texts_ = 0;
  bool whole_ = true;
  double least_ = INFINITY;
  double most_ = -INFINITY;
  double mean_ = 0;
  std::string text_;  // the first
};

}  // namespace

int inspect_table(const std::string& path, const std::string& id) {
  TextFormat format = data::format_of(path);
  format.id = id;
  // IDs and names are what training wants them to be, or this says what they are not.
  const data::TextTable table(path, format);
  std::vector<std::string> names;
  std::vector<Column> columns;
  const Rows rows(path, format.quotes, [&](const Rows::Row& row) {
    size_t column = 0;
    Cells cells(row.text, format);
    for (; const auto cell = cells.next(); ++column) {
      if (row.number == 0) {
        names.emplace_back(data::trimmed(*cell));
        columns.emplace_back();
      } else if (column < columns.size()) {
        columns[column].add(*cell, format);
      }
    }
    if (column != columns.size())
      fail(ErrorKind::DataLoss, "{}:{}: {} cells; expected {}, as in the header", path, row.line, column,
           columns.size());
  });
  size_t width = 6;
  for (const std::string& name : names) width = std::max(width, name.size());
  fmt::print("{}: a table of {} rows and {} columns, {}; its IDs are in '{}'\n", path, table.size(),
             names.size(), human_bytes(rows.bytes()), id.empty() ? names.front() : id);
  fmt::print("  {:<{}} {:<8} {:>10} {:>10} {:>11} {:>11} {:>11}\n", "column", width, "type", "values",
             "missing", "min", "mean", "max");
  for (size_t i = 0; i < names.size(); ++i) fmt::print("  {:<{}} {}\n", names[i], width, columns[i].line());
  return 0;
}

}  // namespace tutti
