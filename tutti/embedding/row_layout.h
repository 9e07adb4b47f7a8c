#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tutti/data/sampler.h"

namespace tutti::embedding {

// Which worker owns a row of a sharded table.
enum class Placement {
  Mod,    // id mod workers: spreads ids that were numbered by frequency evenly
  Block,  // contiguous ranges of ids whose sizes differ by at most one
  Hash,  // like Mod, after the ids were permuted: for ids with a pattern of their own, such as only even ones
};

std::string_view name_of(Placement placement);
// Throws a DataLoss that names `what` if there is no such placement.
Placement parse_placement(std::string_view name, std::string_view what);

// Where the rows of a table are: every row has one owner, and a place among the rows of its owner.
class RowLayout {
 public:
  RowLayout() = default;
  RowLayout(Placement placement, int64_t rows, int world);

  struct Place {
    int owner = 0;
    int64_t row = 0;  // among those of the owner
    bool operator==(const Place&) const = default;
  };
  Place place_of(int64_t id) const;
  int64_t id_at(const Place& place) const;
  // The number of rows of an owner.
  int64_t count(int owner) const;

  Placement placement() const { return placement_; }
  int64_t rows() const { return rows_; }
  int world() const { return world_; }

 private:
  Placement placement_ = Placement::Mod;
  int64_t rows_ = 0;
  int world_ = 1;
  std::optional<data::Permutation> permutation_;  // of the ids, for Hash
};

// Fills a row with its initial values, uniform in [-scale, scale). They are a function of seed, table and id
// alone, so they are the same on any number of workers.
void make_initial_row(uint64_t seed_of_table, int64_t id, double scale, std::span<float> row);
uint64_t seed_of_table(int64_t seed, std::string_view table);

}  // namespace tutti::embedding
