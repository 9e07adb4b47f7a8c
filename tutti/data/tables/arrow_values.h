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

// What tables take of Arrow's arrays.

bool is_number(const arrow::DataType& type);
bool is_list(const arrow::DataType& type);
bool can_be_id(const arrow::DataType& type);

// Texts and whole numbers as they are written; "" for null.
std::string text_of(const arrow::Array& array, int64_t i);

// Hears of rows with a number that no float can hold.
using TooLarge = std::function<void(int64_t row)>;

// Numbers as they are nearest to; nulls are NaN.
void append_floats(const arrow::Array& array, std::vector<float>& to, const TooLarge& wrong);

// A column of lists, or of numbers, each a list of one; null is a list without numbers.
class ListColumn {
 public:
  ListColumn(const arrow::Array& array, const TooLarge& wrong);

  std::span<const float> operator[](int64_t row) const {
    const auto& [begin, length] = lists_[static_cast<size_t>(row)];
    return std::span(numbers_).subspan(static_cast<size_t>(begin), static_cast<size_t>(length));
  }

 private:
  template <class Array>
  void take(const Array& array, const TooLarge& wrong);
  void add(int64_t begin, int64_t length) { lists_.emplace_back(begin, length); }

  std::vector<float> numbers_;
  std::vector<std::pair<int64_t, int64_t>> lists_;  // by row: where in the numbers it begins, how long it is
};

}  // namespace tutti::data
