#include "tutti/data/tables/cell_values.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/data/tables/cells.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {
namespace {

std::string_view without_plus(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return text;
}

// A number that underflows a float becomes 0, as usual; one that overflows is rejected.
std::optional<float> number_in(std::string_view text) {
  const auto wide = parse_double(without_plus(text));
  if (!wide) return std::nullopt;
  const auto number = static_cast<float>(*wide);
  return std::isinf(number) && !std::isinf(*wide) ? std::nullopt : std::optional(number);
}

[[noreturn]] void fail_number(std::string_view cell) {
  if (parse_double(cell)) fail(ErrorKind::InvalidArgument, "{} is too large for a float32", shown(cell));
  fail(ErrorKind::InvalidArgument, "{} is not a number", shown(cell));
}

// Accepts 7.0, as pandas writes whole numbers of columns with missing values.
std::string_view without_zeros_behind_point(std::string_view text) {
  const size_t point = text.find('.');
  const bool has_zeros = point != std::string_view::npos && point > 0 && point + 1 < text.size() &&
                         text.find_first_not_of('0', point + 1) == std::string_view::npos;
  return has_zeros ? text.substr(0, point) : text;
}

int64_t whole_number_in(std::string_view cell) {
  const std::string_view text = without_plus(without_zeros_behind_point(cell));
  if (const auto number = parse_int(text)) return *number;
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos)
    fail(ErrorKind::InvalidArgument, "{} does not fit into an int64", shown(cell));
  fail(ErrorKind::InvalidArgument, "{} is not a whole number", shown(cell));
}

float value_in(std::string_view text, const CellType&, float) {
  const auto number = number_in(text);
  if (!number) fail_number(text);
  require_exact(text, *number);
  return *number;
}

int64_t value_in(std::string_view text, const CellType& cells, int64_t) {
  return cells.is == CellType::Is::Category ? bucket_of(text, cells.buckets) : whole_number_in(text);
}

template <class Value>
void append_missing(const TableKind& kind, std::vector<Value>& values) {
  if (kind.form == TableKind::Form::Indices) return;
  if (!set_missing(kind.cells, values.emplace_back()))
    fail(ErrorKind::InvalidArgument, "{}", must_not_be_missing());
}

// Removes the next value, and the separator after it, from the front of a list.
std::string_view take_value(std::string_view& list) {
  const size_t end = std::min(list.find_first_of(" ,;|"), list.size());
  const std::string_view text = list.substr(0, end);
  list = trimmed(list.substr(end));
  if (list.empty() || std::string_view(",;|").find(list.front()) == std::string_view::npos) return text;
  list = trimmed(list.substr(1));
  if (list.empty())
    fail(ErrorKind::InvalidArgument, "the list ends with a separator; expected a value after it");
  return text;
}

// Parses "1 2 3", "[1, 2, 3]" or "1;2;3"; "" and "[]" are empty.
template <class Value>
void append_values(std::string_view cell, const TextFormat& format, const TableKind& kind,
                   std::vector<Value>& values) {
  const size_t before = values.size();
  if (!cell.empty() && is_missing(cell, format)) {
    if (kind.cells.is_float()) append_missing(kind, values);
    return;
  }
  if (cell.starts_with('[') != cell.ends_with(']'))
    fail(ErrorKind::InvalidArgument, "{} has only one bracket", shown(cell));
  if (cell.starts_with('[')) cell = trimmed(cell.substr(1, cell.size() - 2));
  while (!cell.empty()) {
    const std::string_view text = take_value(cell);
    if (text.empty()) fail(ErrorKind::InvalidArgument, "the list has nothing between two separators");
    if (is_missing(text, format)) {
      append_missing(kind, values);
    } else {
      values.push_back(value_in(text, kind.cells, Value{}));
    }
  }
  require_list(kind, std::span<const Value>(values).subspan(before));
}

void require_length(const TableKind& kind, size_t length) {
  if (kind.form == TableKind::Form::Padded && length > static_cast<size_t>(kind.size))
    fail(ErrorKind::InvalidArgument, "the list has {} {}; the maximum is {}", length,
         kind.cells.is_float() ? "numbers" : "values", kind.size);
}

template <class Value>
void read_value(std::string_view cell, const TextFormat& format, const CellType& cells, Value& value) {
  if (!is_missing(cell, format)) {
    value = value_in(cell, cells, Value{});
  } else if (!set_missing(cells, value)) {
    fail(ErrorKind::InvalidArgument, "{}", must_not_be_missing());
  }
}

}  // namespace

bool set_missing(const CellType&, float& value) {
  value = std::numeric_limits<float>::quiet_NaN();
  return true;
}

bool set_missing(const CellType& cells, int64_t& value) {
  value = cells.missing.value_or(0);
  return cells.missing.has_value();
}

std::string_view must_not_be_missing() {
  return "the whole number is missing; state a value for missing ones, as in int64({.missing = -1})";
}

void read_cell(std::string_view cell, const TextFormat& format, const CellType& cells, float& value) {
  read_value(cell, format, cells, value);
}

void read_cell(std::string_view cell, const TextFormat& format, const CellType& cells, int64_t& value) {
  read_value(cell, format, cells, value);
}

void append_list(std::string_view cell, const TextFormat& format, const TableKind& kind,
                 std::vector<float>& values) {
  append_values(cell, format, kind, values);
}

void append_list(std::string_view cell, const TextFormat& format, const TableKind& kind,
                 std::vector<int64_t>& values) {
  append_values(cell, format, kind, values);
}

void require_list(const TableKind& kind, std::span<const float> list) { require_length(kind, list.size()); }

void require_list(const TableKind& kind, std::span<const int64_t> list) {
  require_length(kind, list.size());
  if (kind.form != TableKind::Form::Indices) return;
  for (const int64_t index : list) {
    if (index < 0 || index >= kind.size)
      fail(ErrorKind::InvalidArgument, "{} is not an index from 0 to {}", index, kind.size - 1);
  }
}

void require_exact(std::string_view text, float number) {
  if (!may_be_rounded(number) || !std::isfinite(number)) return;
  std::string_view digits = text;
  if (digits.starts_with('+') || digits.starts_with('-')) digits.remove_prefix(1);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return;
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  // The decimal expansion of a float is finite, so that this prints all of it.
  const std::string held = fmt::format("{:.0f}", std::abs(number));
  if (digits != held) fail(ErrorKind::InvalidArgument, "{}", not_exact(shown(text), number));
}

}  // namespace tutti::data
