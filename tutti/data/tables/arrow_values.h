#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace tutti::data {

// The values of Arrow arrays that tables support.

bool is_number(const arrow::DataType& type);
bool is_list(const arrow::DataType& type);
bool can_be_id(const arrow::DataType& type);

// Returns a text or a whole number as text; "" for null.
std::string text_of(const arrow::Array& array, int64_t i);

// Called for each row with a number too large for a float32, or a whole number that is not exact as one.
using ReportProblem = std::function<void(int64_t row, const std::string& why)>;

// Appends numbers as the nearest float32; nulls become NaN.
void append_floats(const arrow::Array& array, std::vector<float>& to, const ReportProblem& wrong);

// A column of lists, or of numbers, each treated as a list of one; null is an empty list.
class ListColumn {
 public:
  ListColumn(const arrow::Array& array, const ReportProblem& wrong);

  std::span<const float> operator[](int64_t row) const {
    const auto& [begin, length] = lists_[static_cast<size_t>(row)];
    return std::span(numbers_).subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
  }

 private:
  template <class Array>
  void take(const Array& array, const ReportProblem& wrong);
  void add(int64_t begin, int64_t length) { lists_.emplace_back(begin, length); }

  std::vector<float> numbers_;
  std::vector<std::pair<int64_t, int64_t>> lists_;  // for each row, begin and length in numbers_
};

}  // namespace tutti::data
