#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/tables/schema.h"

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace tutti::data {

// The values of Arrow arrays that tables support.

bool can_be_id(const arrow::DataType& type);
// Returns "" if a column of this type can be read as the kind says, else what was expected: "numbers".
std::string expected_instead(const arrow::DataType& type, const TableKind& kind);

// Returns a text or a number as text; "" for null. The text may be stored in `scratch`.
std::string_view text_of(const arrow::Array& array, int64_t i, std::string& scratch);
// Calls `visit` with the text of each value, or of each element of lists.
void each_text(const arrow::Array& array, const std::function<void(std::string_view)>& visit);

// Called for each row with a value that the cells cannot have.
using ReportProblem = std::function<void(int64_t row, const std::string& why)>;

// Appends the values of an array as the cells have them. Only `missing` of the format is used.
void append_values(const arrow::Array& array, const CellType& cells, const TextFormat& format,
                   std::vector<float>& to, const ReportProblem& wrong);
void append_values(const arrow::Array& array, const CellType& cells, const TextFormat& format,
                   std::vector<int64_t>& to, const ReportProblem& wrong);

// A column of lists, or of values, each treated as a list of one; null is an empty list.
template <class Value>
class ListColumn {
 public:
  ListColumn(const arrow::Array& array, const TableKind& kind, const TextFormat& format,
             const ReportProblem& wrong);

  std::span<const Value> operator[](int64_t row) const {
    const auto& [begin, length] = lists_[static_cast<size_t>(row)];
    return std::span(values_).subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
  }

 private:
  template <class Array>
  void append_lists(const Array& array, const TableKind& kind, const TextFormat& format,
                    const ReportProblem& wrong);
  void drop_missing(const arrow::Array& values);

  std::vector<Value> values_;
  std::vector<std::pair<int64_t, int64_t>> lists_;  // for each row, begin and length in values_
};

}  // namespace tutti::data
