#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/embedding/row_sums.h"
#include "tutti/lanes/lanes.h"

namespace tutti::embedding {

// The rows of all owners of a table, where this process can read them at any time.
struct DirectRows {
  std::vector<torch::Tensor> of_owners = {};  // (rows, dim) each; empty: they cannot be read
  int row_bits = 0;                           // see RowLayout

  bool readable() const { return !of_owners.empty(); }
};

// The lookups of the lanes of a step in one table, and after each lane the gradients of its lookups. Not
// thread-safe.
class Lookups {
 public:
  Lookups(std::string table, int64_t dim) : table_(std::move(table)), dim_(dim) {}

  // Begins a step, and forgets the one before.
  void begin_step();
  // The ids of one column of the next lane, as the batch has them, and the key of each (RowLayout), or
  // kNoKey.
  struct Column {
    torch::Tensor ids;
    std::vector<uint64_t> keys;
  };
  void add_lane(std::vector<Column> columns);
  // The rows that are looked up. Called after the last lane; `bits` is the number of bits of a key.
  const RowIndex& index(int bits);

  // Sets where lookups find the rows: all rows of the table, or (rows of the index, dim).
  void read_from(const DirectRows& all);
  void read_from(torch::Tensor fetched);

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

  // Returns the rows of all lookups, (lookups, dim).
  torch::Tensor all_rows() const;

  // Returns a hash of the gradients of a lane that has ended, of 16 bytes.
  std::string hash_of_lane(size_t lane) const;
  // Returns the sums of the gradients over the lanes of this worker, which were added first; RowSum::row is a
  // row of the index. Further lanes are left out.
  RowSums sums(int bits, const LaneRange& range, int64_t lanes);

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
  template <class Copy>
  void with_rows(const Copy& copy) const;
  torch::Tensor gather(int64_t begin, int64_t size) const;
  const torch::Tensor& leaf(InLane& column);
  const torch::Tensor* leaf_of(const torch::Tensor& ids);
  torch::Tensor pick(const std::vector<uint64_t>& keys);
  torch::Tensor in_shape(const torch::Tensor& rows, const torch::Tensor& ids) const;

  std::string table_;
  int64_t dim_;
  std::vector<uint64_t> keys_;  // of all lookups
  std::vector<InLane> columns_;
  std::vector<Lane> lanes_;
  RowIndex index_;
  bool is_indexed_ = false;
  std::vector<const float*> direct_;  // the rows of each owner; empty: fetched_ is used
  int row_bits_ = 0;
  torch::Tensor fetched_;
  const float* fetched_rows_ = nullptr;
  size_t lane_ = kNoLane;
};

}  // namespace tutti::embedding
