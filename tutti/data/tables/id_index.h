#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::data {

// Which row has which ID, in 24 bytes a row. IDs are told apart by 128 bits of hash: that two of a billion
// have the same is less likely than that a machine adds wrongly.
class IdIndex {
 public:
  // Of the next row.
  void add(std::string_view id);
  // After the last. Returns two rows with one ID, if there are any.
  struct Twice {
    int64_t first;
    int64_t second;
  };
  std::optional<Twice> finish();
  // In place of that: leaves out every row whose ID an earlier one has. Returns those rows.
  std::vector<int64_t> finish_without_doubles();

  // Rows that were added.
  int64_t size() const { return rows_; }
  std::optional<int64_t> find(std::string_view id) const;
  // Whether both have the same IDs in the same order.
  bool is_aligned_with(const IdIndex& other) const {
    return size() == other.size() && order_ == other.order_;
  }

  // By this one's row, the other's row of the same ID; or else a row whose ID the other index does not have.
  struct Joined {
    std::vector<int64_t> rows;
    std::optional<int64_t> alone_here;
    std::optional<int64_t> alone_there;
  };
  Joined join(const IdIndex& other) const;
  // The same where some may be missing: -1.
  std::vector<int64_t> join_some(const IdIndex& other) const;

  // A row of one of several indices.
  struct Place {
    size_t index;
    int64_t row;
  };
  // Two rows of different indices with one ID, if there are any.
  friend std::optional<std::pair<Place, Place>> find_shared(const std::vector<const IdIndex*>& indices);

 private:
  struct Hash {
    uint64_t high;
    uint64_t low;
    auto operator<=>(const Hash&) const = default;
  };
  struct Entry {
    Hash hash;
    int64_t row;
  };
  static Hash hash_of(std::string_view id);

  std::vector<Entry> entries_;  // by hash, once finished
  int64_t rows_ = 0;
  Hash order_{};
};

std::optional<std::pair<IdIndex::Place, IdIndex::Place>> find_shared(
    const std::vector<const IdIndex*>& indices);

}  // namespace tutti::data
