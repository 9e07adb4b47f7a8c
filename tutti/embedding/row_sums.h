#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/lanes/lanes.h"
#include "tutti/transport/reduce.h"

// The rows that the lanes of a step look up, each once, and the sums of their gradients.
namespace tutti::embedding {

// The rows among a list of keys. A lookup is an element of the list.
struct RowIndex {
  static constexpr int32_t kNone = -1;

  std::vector<uint64_t> keys;   // of the rows, ascending, each once
  std::vector<int32_t> row_of;  // of each lookup; kNone if it has no row
  // The lookups of row r are order[begin[r]] to order[begin[r + 1]], in ascending order.
  std::vector<int32_t> begin;
  std::vector<int32_t> order;

  int64_t rows() const { return static_cast<int64_t>(keys.size()); }
};

// A lookup with this key has no row.
inline constexpr uint64_t kNoKey = ~uint64_t{0};
// `keys` are below 2^bits, or kNoKey.
RowIndex index_rows(std::span<const uint64_t> keys, int bits);

// A sum of gradients of one row, over the lanes below a node of the tree.
struct RowSum {
  int64_t row = 0;
  comm::TreeNode place = {0, 0};
  // The number of lookups of the row that this sum, and others after it, are made of; 0 in those others.
  int64_t lookups = 0;
};

// Sums of rows, in the order of the rows and then of the lanes. Each has `dim` numbers.
struct RowSums {
  int64_t dim = 0;
  std::vector<RowSum> sums = {};
  std::vector<float> values = {};

  std::span<float> values_of(size_t sum) {
    return std::span(values).subspan(sum * static_cast<size_t>(dim), static_cast<size_t>(dim));
  }
};

// Begins to move numbers into the cache before they are read; null: none. For reads that are far apart.
inline void fetch_for_reading(const float* numbers, int64_t count) {
  constexpr int64_t kInLine = 16;  // floats in a line of the cache
  for (int64_t i = 0; numbers != nullptr && i < count; i += kInLine) __builtin_prefetch(numbers + i);
}

// Adds the gradients of each row: first those of a lane, in the order of its lookups, and then the lanes
// along the tree, as TreeSum does. `gradients[lookup]` points to `dim` numbers, or is null if the lookup has
// none; `ends[i]` is one past the last lookup of lane i of the range.
RowSums sum_lanes(const RowIndex& index, int64_t dim, std::span<const float* const> gradients,
                  std::span<const int64_t> ends, const LaneRange& range, int64_t lanes);

// The same as RowSums, with values in other memory.
struct RowSumsView {
  std::vector<RowSum> sums = {};
  std::span<const float> values = {};
};

// Adds the sums of several workers, which come in the order of their lanes, along the tree, and divides them
// by the divisor unless it is 0. The result has one sum for each row.
RowSums sum_workers(std::span<const RowSumsView> workers, int64_t dim, int64_t lanes, double divisor = 0);

}  // namespace tutti::embedding
