#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/tables/cell_buffer.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// Caches dense rows of a file that were read before, with the cells of all its tables. Thread-safe.
class KeptRows {
 public:
  KeptRows(int64_t rows, size_t row_bytes);

  static uint64_t bytes(int64_t rows, size_t row_bytes) {
    return static_cast<uint64_t>(rows) * (row_bytes + 1);
  }

  bool has(int64_t row) const {
    return states_[static_cast<size_t>(row)].load(std::memory_order_acquire) == kThere;
  }
  // Appends a cached row to the buffers.
  void copy(int64_t row, std::span<CellBuffer> to) const;
  // Caches the row that was appended as number `at`.
  void cache_row(int64_t row, std::span<const CellBuffer> from, int64_t at);

 private:
  enum : uint8_t { kNone, kBeingWritten, kThere };
  std::byte* place(int64_t row) const { return cells_.get() + static_cast<size_t>(row) * row_bytes_; }

  const size_t row_bytes_;
  const std::unique_ptr<std::byte[]> cells_;
  std::vector<std::atomic<uint8_t>> states_;
};

// One file of one shard: a table, or a tensor with one row per example.
struct ShardFile {
  std::unique_ptr<Table> table;
  torch::Tensor tensor;
  std::vector<int64_t> rows;  // row of each example; empty: row = example
  std::unique_ptr<KeptRows> kept;

  bool has_ids() const { return table && table->has_ids(); }
  int64_t size() const { return table ? table->size() : tensor.size(0); }
  int64_t rows_in_file() const { return table ? table->rows_in_file() : size(); }
  int64_t row_in_file(int64_t row) const { return table ? table->row_in_file(row) : row; }
  int64_t row_of(int64_t example) const {
    return rows.empty() ? example : rows[static_cast<size_t>(example)];
  }
  // The number of bytes of a row in all views; 0 if some have lists, which are not cached.
  size_t row_bytes() const;
  // Returns the names of a view's columns, or the shape of a row. They must be the same in all shards.
  std::vector<std::string> columns(size_t view) const;
  // Appends consecutive rows to the buffers of the views.
  void read(int64_t begin, int64_t end, std::span<CellBuffer> to, std::string& scratch) const;
};

// Returns for each row of `file` the row of `other` that belongs to it, or -1: the one with the same ID or,
// if one of them has no IDs, the one at the same place of its file.
std::vector<int64_t> rows_beside(const ShardFile& file, const ShardFile& other);

// A row of a file, for a batch. All files of a batch have the same views.
struct RowPlace {
  const ShardFile* file;
  int64_t row;
};

// Returns the rows of files that are tensors.
torch::Tensor tensor_rows(const std::vector<RowPlace>& places);
// Returns the cells of the rows of tables, one buffer for each view. Requires at least one row.
std::vector<CellBuffer> read_rows(const std::vector<RowPlace>& places);

}  // namespace tutti::data
