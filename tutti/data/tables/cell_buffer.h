#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"
#include "tutti/data/tables/schema.h"

namespace tutti::data {

// Calls `act` with a zero of the C++ type of the cells: float or int64_t.
template <class Act>
decltype(auto) with_type_of(const CellType& cells, Act&& act) {
  return cells.is_float() ? act(float{}) : act(int64_t{});
}

// The cells of one table for the rows of a batch, which are appended one after the other.
class CellBuffer {
 public:
  // Reserves memory for `rows` rows.
  CellBuffer(const TableKind& kind, size_t columns, int64_t rows);

  const TableKind& kind() const { return kind_; }
  size_t columns() const { return columns_; }

  // For dense kinds: the cells of the next row, to be written in any order. Consecutive rows are contiguous.
  template <class T>
  T* row() {
    return reinterpret_cast<T*>(dense_ + static_cast<size_t>(row_) * row_bytes_);
  }
  // For the other kinds: the values of all lists. Append the values of the next list, and then call
  // add_list() with their position and number.
  template <class T>
  std::vector<T>& values() {
    if constexpr (std::is_same_v<T, float>)
      return floats_;
    else
      return integers_;
  }
  void add_list(size_t column, size_t begin, int64_t length) {
    lists_[static_cast<size_t>(row_) * columns_ + column] = {begin, length};
  }
  // Ends the row, or the next `count` rows if they are dense.
  void end_rows(int64_t count = 1);
  // Drops the lists of a row that was not ended, or all rows.
  void restart_row();
  void clear();

  // The bytes of a dense row that was ended.
  std::span<const std::byte> bytes_of(int64_t row) const {
    return {dense_ + static_cast<size_t>(row) * row_bytes_, row_bytes_};
  }
  size_t row_bytes() const { return row_bytes_; }
  int64_t rows() const { return row_; }

  // Appends the tensors that a batch has for the table, once all rows have been ended: one tensor, or lists
  // and their lengths.
  void move_to(const std::string& name, Batch::Tensors& tensors);

 private:
  struct List {
    size_t begin = 0;
    int64_t length = 0;
  };
  size_t values_now() const { return kind_.cells.is_float() ? floats_.size() : integers_.size(); }
  int64_t longest() const;
  template <class T>
  torch::Tensor padded_to(int64_t width);
  torch::Tensor as_sparse() const;
  torch::Tensor lengths() const;

  TableKind kind_;
  size_t columns_;
  int64_t capacity_;
  int64_t row_ = 0;       // the next one
  torch::Tensor tensor_;  // of dense kinds
  std::byte* dense_ = nullptr;
  size_t row_bytes_ = 0;
  std::vector<float> floats_;  // of all lists, in the order in which they were added
  std::vector<int64_t> integers_;
  size_t values_before_ = 0;  // of the rows that were ended
  std::vector<List> lists_;   // by row and column
};

}  // namespace tutti::data
