#include "tutti/data/tables/text_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/float_text.h"

namespace tutti::data {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// As much of it as fits into a line.
std::string shown(std::string_view cell) {
  constexpr size_t kMost = 40;
  return cell.size() <= kMost ? fmt::format("'{}'", cell) : fmt::format("'{}...'", cell.substr(0, kMost));
}

// A number that is too small for a float is 0, as everywhere; one that is too large is none.
std::optional<float> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto wide = parse_double(text);
  if (!wide) return std::nullopt;
  const auto number = static_cast<float>(*wide);
  return std::isinf(number) && !std::isinf(*wide) ? std::nullopt : std::optional(number);
}

}  // namespace

TextTable::TextTable(const std::string& path, const TextFormat& format) : format_(format), file_(path) {
  rows_.emplace(path, format.quotes, [this](const Rows::Row& row) { add_row(row); });
  if (!has_columns_)
    fail(ErrorKind::DataLoss, "{}: the file is empty; expected {}", path,
         format.header ? "a row with the columns' names" : "rows");
  const auto twice = ids_.finish();
  if (!twice) return;
  std::string buffer;
  const int64_t behind_header = format_.header ? 1 : 0;
  const int64_t first_line = rows_->read(twice->first + behind_header, buffer).line;
  const Rows::Row row = rows_->read(twice->second + behind_header, buffer);
  fail(ErrorKind::DataLoss, "{}:{}: there is a row of ID {} already, in line {}: expected one row an ID",
       path, row.line, shown(id_in(row)), first_line);
}

void TextTable::add_row(const Rows::Row& row) {
  if (!has_columns_) {
    read_header(row);
    if (format_.header) return;
  }
  const std::string id = id_in(row);
  if (id.empty()) fail_at(row, "an empty ID");
  if (!is_utf8(id)) fail_at(row, fmt::format("the ID {} is not UTF-8", shown(id)));
  ids_.add(id);
}

void TextTable::read_header(const Rows::Row& row) {
  has_columns_ = true;
  Cells cells(row.text, format_);
  std::vector<std::string> names;
  try {
    while (const auto cell = cells.next()) names.emplace_back(trimmed(*cell));
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", file_, row.line, error.what());
  }
  if (!format_.header) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = std::to_string(i + 1);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) fail(ErrorKind::DataLoss, "{}:{}: column {} has no name", file_, row.line, i + 1);
    if (!is_utf8(names[i]))
      fail(ErrorKind::DataLoss, "{}:{}: the name of column {} is not UTF-8", file_, row.line, i + 1);
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i))
      fail(ErrorKind::DataLoss, "{}:{}: two columns are called '{}'", file_, row.line, names[i]);
  }
  if (!format_.id.empty()) {
    const auto id = std::find(names.begin(), names.end(), format_.id);
    if (id == names.end()) {
      fail(ErrorKind::DataLoss, "{}:{}: no column is called '{}', which has to hold the IDs{}", file_,
           row.line, format_.id, did_you_mean(format_.id, names));
    }
    id_column_ = static_cast<size_t>(id - names.begin());
  }
  names.erase(names.begin() + static_cast<ptrdiff_t>(id_column_));
  columns_ = std::move(names);
}

std::string TextTable::id_in(const Rows::Row& row) const {
  try {
    Cells cells(row.text, format_);
    for (size_t i = 0;; ++i) {
      const auto cell = cells.next();
      if (!cell)
        fail(ErrorKind::InvalidArgument, "{} cells, where column {} has to hold the ID", i, id_column_ + 1);
      if (i == id_column_) return std::string(trimmed(*cell));
    }
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", file_, row.line, error.what());
  }
}

void TextTable::fail_at(const Rows::Row& row, const std::string& what) const {
  fail(ErrorKind::DataLoss, "{}:{}: {}", file_, row.line, what);
}

std::string TextTable::id(int64_t row) const {
  std::string buffer;
  return id_in(rows_->read(row + (format_.header ? 1 : 0), buffer));
}

std::string_view TextTable::text(int64_t row, std::string& buffer) const {
  return rows_->read(row + (format_.header ? 1 : 0), buffer).text;
}

std::string_view TextTable::header(std::string& buffer) const { return rows_->read(0, buffer).text; }

void TextTable::read(int64_t row, float* numbers, std::string& buffer) const {
  const Rows::Row found = rows_->read(row + (format_.header ? 1 : 0), buffer);
  if (!read_fast(found.text, numbers)) read_carefully(found, numbers);
}

// False where something in it is out of the ordinary.
bool TextTable::read_fast(std::string_view text, float* numbers) const {
  if (format_.quotes && text.find('"') != std::string_view::npos) return false;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto end_of_cell = [&] { return std::find(at, end, format_.separator); };
  for (size_t column = 0; column <= columns_.size(); ++column) {
    if (column == id_column_) {
      at = end_of_cell();
    } else if (at == end || *at == format_.separator) {
      *numbers++ = kMissing;
    } else {
      const char* behind = read_common_float(at, end, *numbers);
      if (behind == nullptr) {
        const auto [other, error] = std::from_chars(at, end, *numbers);
        if (error == std::errc()) behind = other;
      }
      if (behind != nullptr && (behind == end || *behind == format_.separator)) {
        at = behind;
      } else {
        const char* const cell_end = end_of_cell();
        if (!is_missing({at, static_cast<size_t>(cell_end - at)}, format_)) return false;
        *numbers = kMissing;
        at = cell_end;
      }
      ++numbers;
    }
    if (at == end) return column == columns_.size();
    ++at;
  }
  return false;
}

void TextTable::read_carefully(const Rows::Row& row, float* numbers) const {
  size_t column = 0;
  std::string problem;
  try {
    Cells cells(row.text, format_);
    for (; const auto cell = cells.next(); ++column) {
      if (column == id_column_ || column > columns_.size()) continue;
      const std::string_view text = trimmed(*cell);
      const auto number = is_missing(text, format_) ? std::optional(kMissing) : number_in(text);
      if (!number) {
        const size_t place = column - (column > id_column_ ? 1 : 0);
        fail(ErrorKind::InvalidArgument, "column '{}' ({}): {} is no number{}", columns_[place], column + 1,
             shown(text), parse_double(text) ? " that a float can hold" : "");
      }
      *numbers++ = *number;
    }
    if (column != columns_.size() + 1)
      fail(ErrorKind::InvalidArgument, "{} cells; expected {}, as in the {}", column, columns_.size() + 1,
           format_.header ? "header" : "first row");
    return;
  } catch (const Error& error) {
    problem = error.what();
  }
  fail_at(row, fmt::format("ID {}: {}", shown(id_in(row)), problem));
}

}  // namespace tutti::data
