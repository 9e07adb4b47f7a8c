#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/row_sums.h"
#include "tutti/params/lanes.h"

namespace tutti::embedding {

// What the lanes of a step look up in one table: the rows, which are fetched once, before the first lane, and
// after each lane the gradients of its lookups. Not thread-safe.
class Lookups {
 public:
  Lookups(std::string table, int64_t dim) : table_(std::move(table)), dim_(dim) {}

  // Begins a step, and forgets the one before.
  void begin_step();
  // The ids of one column of the next lane, as the batch has them, and a key for each (index_rows).
  struct Column {
    torch::Tensor ids;
    std::vector<uint64_t> keys;
  };
  void add_lane(std::vector<Column> columns);
  // Called after the last lane. Returns the rows that have to be fetched.
  const RowIndex& index(int bits);
  const RowIndex& index() const { return index_; }
  // The fetched rows, (rows, dim), in the order of the index.
  const torch::Tensor& rows() const { return rows_; }

  // Between these, forward passes may look up the ids of this lane.
  void begin_lane(size_t lane);
  // Keeps the gradients of the lane's lookups.
  void end_lane();
  bool has_lane() const { return lane_ != kNoLane; }

  // Returns the rows of these ids, in the shape of the ids and then `dim`; zeros where an id has no row.
  // `keys_of` is called only if the ids are not a column of the batch as it is. Throws InvalidArgument if one
  // of them is not in a column of the lane.
  template <class KeysOf>
  torch::Tensor rows_of(const torch::Tensor& ids, const KeysOf& keys_of) {
    if (const torch::Tensor* leaf = leaf_of(ids)) return in_shape(*leaf, ids);
    return in_shape(pick(keys_of(ids)), ids);
  }

  // Returns the sums of the gradients over the lanes of this worker.
  RowSums sums(const LaneRange& block, int64_t lanes) const;

 private:
  static constexpr size_t kNoLane = ~size_t{0};
  struct InLane {
    torch::Tensor ids;
    int64_t begin = 0;  // the first lookup
    int64_t size = 0;
    torch::Tensor leaf;  // the rows of the lookups, once they were asked for
    torch::Tensor grads;
  };
  struct Lane {
    size_t begin = 0;  // the first column
    size_t end = 0;
  };

  std::span<InLane> columns_of_lane();
  const torch::Tensor& leaf(InLane& column);
  const torch::Tensor* leaf_of(const torch::Tensor& ids);
  torch::Tensor pick(const std::vector<uint64_t>& keys);
  torch::Tensor in_shape(const torch::Tensor& rows, const torch::Tensor& ids) const;

  const std::string table_;
  const int64_t dim_;
  std::vector<uint64_t> keys_;  // of all lookups
  std::vector<InLane> columns_;
  std::vector<Lane> lanes_;
  RowIndex index_;
  torch::Tensor rows_;
  size_t lane_ = kNoLane;
};

}  // namespace tutti::embedding
