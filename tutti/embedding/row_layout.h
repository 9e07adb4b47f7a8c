#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/lanes/sampler.h"

namespace tutti::embedding {

// Which task owns a row of a sharded table.
enum class Placement {
  Mod,    // id mod owners: spreads ids that were numbered by frequency evenly
  Block,  // contiguous ranges of ids whose sizes differ by at most one
  Hash,  // like Mod, after the ids were permuted: for ids with a pattern of their own, such as only even ones
};

std::string_view name_of(Placement placement);
// Throws a DataLoss that names `what` if there is no such placement.
Placement parse_placement(std::string_view name, std::string_view what);

// The places of the rows of a table: every row has one owner, and a place among the rows of its owner. A key
// is the place of a row as one number; the keys of one owner are consecutive.
//
// A table that grows has no fixed rows: its ids are any numbers from 0. The keys are the permuted ids, and
// the place of a row at its owner is its key. Each owner has a contiguous part of kBuckets equal ranges of
// keys, so that limits which hold for each bucket do not depend on the number of owners.
class RowLayout {
 public:
  static constexpr int64_t kBuckets = 840;  // divisible by all numbers up to 8
  static constexpr int kGrowingBits = 63;   // of ids and keys

  RowLayout() = default;
  // If `rows` is 0, the table grows.
  RowLayout(Placement placement, int64_t rows, int owners);

  // The task that owns a row, and the place of the row there.
  struct Place {
    int owner = 0;
    int64_t row = 0;  // among the rows of the owner
    bool operator==(const Place&) const = default;
  };
  Place place_of(int64_t id) const;
  int64_t id_at(const Place& place) const;

  // The owner is in the upper bits of a key.
  uint64_t key_of(int64_t id) const;
  Place place_of_key(uint64_t key) const {
    if (grows()) return {owner_of_bucket(bucket_of(static_cast<int64_t>(key))), static_cast<int64_t>(key)};
    return {static_cast<int>(key >> row_bits_), static_cast<int64_t>(key & ((uint64_t{1} << row_bits_) - 1))};
  }
  // All keys are below 2^key_bits().
  int key_bits() const { return key_bits_; }
  // For a table that does not grow: a key is owner << row_bits() | row.
  int row_bits() const { return row_bits_; }
  // The first key that an owner, or one after the last, may have.
  uint64_t first_key(int owner) const;

  // For a table that grows: the bucket of a row.
  static int64_t bucket_of(int64_t row);

  // The number of rows of an owner. For a table that does not grow.
  int64_t count(int owner) const;

  bool grows() const { return rows_ == 0; }
  Placement placement() const { return placement_; }
  int64_t rows() const { return rows_; }
  int owners() const { return owners_; }

 private:
  int owner_of_bucket(int64_t bucket) const { return static_cast<int>(bucket * owners_ / kBuckets); }

  Placement placement_ = Placement::Mod;
  int64_t rows_ = 1;
  int owners_ = 1;
  int row_bits_ = 1;
  int key_bits_ = 1;
  std::optional<data::Permutation> permutation_;  // of the ids, for Hash
};

// Fills a row with its initial values, uniform in [-scale, scale). They are a function of seed, table and id
// alone, so they are the same on any number of tasks.
void make_initial_row(uint64_t seed_of_table, int64_t id, double scale, std::span<float> row);
uint64_t seed_of_table(int64_t seed, std::string_view table);

}  // namespace tutti::embedding
