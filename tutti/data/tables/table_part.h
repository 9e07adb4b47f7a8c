#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"
#include "tutti/data/tables/schema.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// Caches the numbers of a table that were read before. Thread-safe.
class KeptRows {
 public:
  KeptRows(int64_t rows, size_t columns)
      : columns_(columns),
        numbers_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(rows) * columns)),
        states_(static_cast<size_t>(rows)) {}

  static uint64_t bytes(int64_t rows, size_t columns) {
    return static_cast<uint64_t>(rows) * (columns * sizeof(float) + 1);
  }

  bool find(int64_t row, float* numbers) const {
    if (states_[static_cast<size_t>(row)].load(std::memory_order_acquire) != kThere) return false;
    std::copy_n(place(row), columns_, numbers);
    return true;
  }
  void keep(int64_t row, const float* numbers) {
    uint8_t expected = kNone;
    std::atomic<uint8_t>& state = states_[static_cast<size_t>(row)];
    if (!state.compare_exchange_strong(expected, kBeingWritten)) return;
    std::copy_n(numbers, columns_, place(row));
    state.store(kThere, std::memory_order_release);
  }

 private:
  enum : uint8_t { kNone, kBeingWritten, kThere };
  float* place(int64_t row) const { return numbers_.get() + static_cast<size_t>(row) * columns_; }

  const size_t columns_;
  const std::unique_ptr<float[]> numbers_;
  std::vector<std::atomic<uint8_t>> states_;
};

// One table of one shard: a file whose rows have IDs, or a tensor with one row per example.
struct TablePart {
  std::unique_ptr<Table> table;
  torch::Tensor tensor;
  std::vector<int64_t> rows;  // row of each example; empty: row = example
  std::unique_ptr<KeptRows> kept;

  int64_t size() const { return table ? table->size() : tensor.size(0); }
  // The names of the columns, which must be the same in all shards.
  std::vector<std::string> columns() const;
  int64_t row_of(int64_t example) const {
    return rows.empty() ? example : rows[static_cast<size_t>(example)];
  }
  // Reads the numbers of consecutive rows, one row after the other.
  void read(int64_t begin, int64_t end, float* numbers, std::string& buffer) const;
};

// A row of a part, for a batch.
struct RowPlace {
  const TablePart* part;
  int64_t row;
};

// Appends the tensors that a batch has for one table of this kind: one tensor, or lists and their lengths.
// Requires at least one row.
void append_rows(const std::string& name, const TableKind& kind, const std::vector<RowPlace>& places,
                 Batch::Tensors& to);

}  // namespace tutti::data
