#include "tutti/data/tables/text_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"

namespace tutti::data {
namespace {

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// A number that underflows a float becomes 0, as usual; one that overflows is rejected.
std::optional<float> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto wide = parse_double(text);
  if (!wide) return std::nullopt;
  const auto number = static_cast<float>(*wide);
  return std::isinf(number) && !std::isinf(*wide) ? std::nullopt : std::optional(number);
}

[[noreturn]] void fail_number(std::string_view cell) {
  if (parse_double(cell)) fail(ErrorKind::InvalidArgument, "{} is too large for a float32", shown(cell));
  fail(ErrorKind::InvalidArgument, "{} is not a number", shown(cell));
}

// Up to this limit every whole number is exact as a float32; above it, only some are.
constexpr float kExactUpTo = 1 << 24;

// Numbers are read as the nearest float32. For a whole number that is not exact, such as an index or a time,
// this would be a different number: an error.
void require_exact(std::string_view text, float number) {
  if (std::abs(number) < kExactUpTo || !std::isfinite(number)) return;
  std::string_view digits = text;
  if (digits.starts_with('+') || digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return;
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  // The decimal expansion of a float is finite, so that this prints all of it.
  const std::string held = fmt::format("{:.0f}", std::abs(number));
  if (digits != held) fail(ErrorKind::InvalidArgument, "{}", not_exact(shown(text), number));
}

// Parses "1 2 3", "[1, 2, 3]" or "1;2;3"; "" and "[]" are empty.
void append_list(std::string_view cell, const TextFormat& format, std::vector<float>& numbers) {
  if (cell.starts_with('[') != cell.ends_with(']'))
    fail(ErrorKind::InvalidArgument, "{} has only one bracket", shown(cell));
  if (cell.starts_with('[')) cell = trimmed(cell.substr(1, cell.size() - 2));
  while (!cell.empty()) {
    const size_t end = std::min(cell.find_first_of(" ,;"), cell.size());
    const std::string_view text = cell.substr(0, end);
    const auto number = is_missing(text, format) ? std::nullopt : number_in(text);
    if (!number && !(!text.empty() && is_missing(text, format))) fail_number(text);
    if (number) require_exact(text, *number);
    numbers.push_back(number.value_or(kMissing));
    cell = trimmed(cell.substr(end));
    if (cell.empty() || !(cell.front() == ',' || cell.front() == ';')) continue;
    cell = trimmed(cell.substr(1));
    if (cell.empty())
      fail(ErrorKind::InvalidArgument, "the list ends with a separator; expected a number after it");
  }
}

}  // namespace

TextTable::TextTable(const std::string& path, const TextFormat& format, const TableKind& kind, BadRows bad)
    : Table(path, kind), format_(format), bad_(bad) {
  if (std::string_view("0123456789+-.eE\"\r\n").find(format.separator) != std::string_view::npos)
    fail(ErrorKind::InvalidArgument, "{}: '{}' cannot be the separator of a table", path, format.separator);
  rows_.emplace(path, format.quotes, [this](const Rows::Row& row) { add_row(row); });
  if (!has_columns_)
    fail(ErrorKind::DataLoss, "{}: the file is empty; expected {}", path,
         format.header ? "a row with the columns' names" : "rows");
  finish_ids(bad);
}

void TextTable::fail_twice(const IdIndex::Twice& rows) const {
  std::string buffer;
  const int64_t first_line = row_at(rows.first, buffer).line;
  const Rows::Row row = row_at(rows.second, buffer);
  fail(ErrorKind::DataLoss, "{}:{}: the ID {} already occurs in line {}; IDs must be unique", path_, row.line,
       shown(id_in(row)), first_line);
}

void TextTable::add_row(const Rows::Row& row) {
  if (!has_columns_) {
    read_header(row);
    if (format_.header) return;
  }
  if (bad_ == BadRows::Skip && !is_good(row)) {
    shifts_.push_back(ids_.size());
    return;
  }
  ids_.add(require_id(row));
}

std::string TextTable::require_id(const Rows::Row& row) const {
  std::string id = id_in(row);
  if (const std::string problem = problem_of_id(id); !problem.empty()) fail_at(row, problem);
  return id;
}

bool TextTable::is_good(const Rows::Row& row) {
  try {
    static_cast<void>(require_id(row));
    std::vector<float> numbers(columns_.size());
    std::vector<int64_t> lengths;
    if (is_dense()) {
      read_dense(row, numbers.data());
    } else {
      read_lists_of(row, numbers, lengths);
    }
    return true;
  } catch (const Error& error) {
    leave_out(error.what());
    return false;
  }
}

void TextTable::read_header(const Rows::Row& row) {
  has_columns_ = true;
  Cells cells(row.text, format_);
  std::vector<std::string> names;
  try {
    while (const auto cell = cells.next()) names.emplace_back(trimmed(*cell));
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, error.what());
  }
  if (!format_.header) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = std::to_string(i + 1);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_utf8(names[i]))
      fail(ErrorKind::DataLoss, "{}:{}: the name of column {} is not UTF-8", path_, row.line, i + 1);
  }
  id_at_ = set_columns(std::move(names), format_.id, fmt::format("{}:{}", path_, row.line));
}

std::string TextTable::id_in(const Rows::Row& row) const {
  try {
    Cells cells(row.text, format_);
    for (size_t i = 0;; ++i) {
      const auto cell = cells.next();
      if (!cell)
        fail(ErrorKind::InvalidArgument, "the row has {} cells, but the ID is expected in column {}", i,
             id_at_ + 1);
      if (i == id_at_) return std::string(trimmed(*cell));
    }
  } catch (const Error& error) {
    fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, error.what());
  }
}

void TextTable::fail_at(const Rows::Row& row, const std::string& what) const {
  fail(ErrorKind::DataLoss, "{}:{}: {}", path_, row.line, what);
}

// The rows that were left out are still in the file.
Rows::Row TextTable::row_at(int64_t row, std::string& buffer) const {
  const auto before = std::upper_bound(shifts_.begin(), shifts_.end(), row) - shifts_.begin();
  return rows_->read(row + before + (format_.header ? 1 : 0), buffer);
}

std::string TextTable::id(int64_t row) const {
  std::string buffer;
  return id_in(row_at(row, buffer));
}

std::string_view TextTable::text(int64_t row, std::string& buffer) const { return row_at(row, buffer).text; }

std::string_view TextTable::header(std::string& buffer) const { return rows_->read(0, buffer).text; }

void TextTable::read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const {
  const auto take = [&](const Rows::Row& row) {
    read_dense(row, numbers);
    numbers += columns_.size();
  };
  if (shifts_.empty()) {
    const int64_t before = format_.header ? 1 : 0;
    rows_->read(begin + before, end + before, buffer, take);
  } else {
    for (int64_t row = begin; row < end; ++row) take(row_at(row, buffer));
  }
}

void TextTable::read_lists(int64_t row, std::vector<float>& numbers, std::vector<int64_t>& lengths,
                           std::string& buffer) const {
  read_lists_of(row_at(row, buffer), numbers, lengths);
}

void TextTable::read_dense(const Rows::Row& row, float* numbers) const {
  if (!read_fast(row.text, numbers)) return read_carefully(row, numbers);
  const auto may_be_rounded = [](float number) { return std::abs(number) >= kExactUpTo; };
  if (!std::any_of(numbers, numbers + columns_.size(), may_be_rounded)) return;
  read_cells(row, [&](size_t column, std::string_view cell) { require_exact(cell, numbers[column]); });
}

// Returns false if the text is not in the common form.
bool TextTable::read_fast(std::string_view text, float* numbers) const {
  if (format_.quotes && text.find('"') != std::string_view::npos) return false;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto end_of_cell = [&] { return std::find(at, end, format_.separator); };
  for (size_t column = 0; column <= columns_.size(); ++column) {
    if (column != id_at_) {
      const size_t last = column < id_at_ ? id_at_ : columns_.size();
      const size_t taken = read_common_floats(at, end, format_.separator, last - column, numbers);
      numbers += taken;
      column += taken;
    }
    if (column == id_at_) {
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
  read_cells(row, [&](size_t, std::string_view cell) {
    const auto number = is_missing(cell, format_) ? std::optional(kMissing) : number_in(cell);
    if (!number) fail_number(cell);
    require_exact(cell, *number);
    *numbers++ = *number;
  });
}

void TextTable::read_lists_of(const Rows::Row& row, std::vector<float>& numbers,
                              std::vector<int64_t>& lengths) const {
  numbers.clear();
  lengths.clear();
  read_cells(row, [&](size_t, std::string_view cell) {
    const size_t before = numbers.size();
    if (!cell.empty() && is_missing(cell, format_)) {
      if (kind_.form != TableKind::Form::Indices) numbers.push_back(kMissing);
    } else {
      append_list(cell, format_, numbers);
    }
    const auto length = static_cast<int64_t>(numbers.size() - before);
    require_list(numbers.data() + before, length);
    lengths.push_back(length);
  });
}

// Visits all cells but the ID.
void TextTable::read_cells(const Rows::Row& row, const TakeCell& take) const {
  size_t column = 0;
  std::string problem;
  try {
    Cells cells(row.text, format_);
    for (; const auto cell = cells.next(); ++column) {
      if (column == id_at_ || column > columns_.size()) continue;
      const size_t place = column - (column > id_at_ ? 1 : 0);
      try {
        take(place, trimmed(*cell));
      } catch (const Error& error) {
        fail(ErrorKind::InvalidArgument, "column '{}' ({}): {}", columns_[place], column + 1, error.what());
      }
    }
    if (column != columns_.size() + 1)
      fail(ErrorKind::InvalidArgument, "the row has {} cells; expected {}, as in the {}", column,
           columns_.size() + 1, format_.header ? "header" : "first row");
    return;
  } catch (const Error& error) {
    problem = error.what();
  }
  fail_at(row, fmt::format("ID {}: {}", shown(id_in(row)), problem));
}

}  // namespace tutti::data
