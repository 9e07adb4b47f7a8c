#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/hashes.h"

namespace tutti::data {

// Maps IDs to rows, in 24 bytes per row. Distinguishes IDs by 128-bit hashes: a collision among a billion IDs
// is less likely than a computing error of the machine.
class IdIndex {
 public:
  // Adds the ID of the next row.
  void add(std::string_view id);
  // Must be called after the last add(). Returns two rows with the same ID, if there are any.
  struct Twice {
    int64_t first;
    int64_t second;
  };
  std::optional<Twice> finish();
  // To be called instead of finish(): drops every row whose ID an earlier row has. Returns those rows.
  std::vector<int64_t> finish_without_doubles();

  // The number of rows that were added.
  int64_t size() const { return rows_; }
  // Returns true if both have the same IDs in the same order.
  bool is_aligned_with(const IdIndex& other) const {
    return size() == other.size() && order_ == other.order_;
  }

  // Returns for each row of this index the row of the other with the same ID; or, if the other index lacks
  // the ID
  // of a row, that row.
  struct Joined {
    std::vector<int64_t> rows;
    std::optional<int64_t> alone_here;
    std::optional<int64_t> alone_there;
  };
  Joined join(const IdIndex& other) const;
  // Like join(), but the row is -1 if the other index does not have the ID.
  std::vector<int64_t> join_some(const IdIndex& other) const;

  // A row of one of several indices.
  struct IndexRow {
    size_t index;
    int64_t row;
  };
  // Returns two rows of different indices with the same ID, if there are any.
  friend std::optional<std::pair<IndexRow, IndexRow>> find_shared(const std::vector<const IdIndex*>& indices);

 private:
  struct Entry {
    XxhBits128 hash;
    int64_t row;
  };

  std::vector<Entry> entries_;  // sorted by hash once finished
  int64_t rows_ = 0;
  XxhBits128 order_{};  // of all IDs so far
};

std::optional<std::pair<IdIndex::IndexRow, IdIndex::IndexRow>> find_shared(
    const std::vector<const IdIndex*>& indices);

}  // namespace tutti::data
