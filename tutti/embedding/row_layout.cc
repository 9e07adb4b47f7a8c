#include "tutti/embedding/row_layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

using data::mix;

constexpr uint64_t kGoldenBits = 0x9e3779b97f4a7c15ULL;  // 2^64 / the golden section

constexpr std::array<std::pair<Placement, std::string_view>, 3> kNames = {
    {{Placement::Mod, "mod"}, {Placement::Block, "block"}, {Placement::Hash, "hash"}}};

}  // namespace

std::string_view name_of(Placement placement) {
  const auto found =
      std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.first == placement; });
  return found->second;
}

Placement parse_placement(std::string_view name, std::string_view what) {
  for (const auto& [placement, known] : kNames) {
    if (known == name) return placement;
  }
  fail(ErrorKind::DataLoss, "{}: '{}' is not a placement of rows (mod, block, hash)", what, name);
}

RowLayout::RowLayout(Placement placement, int64_t rows, int world)
    : placement_(placement), rows_(rows), world_(world) {
  constexpr uint64_t kKey = 0x7475747469;  // part of the format of checkpoints
  if (placement == Placement::Hash) permutation_.emplace(rows, kKey);
}

RowLayout::Place RowLayout::place_of(int64_t id) const {
  if (placement_ == Placement::Block) {
    const int64_t share = rows_ / world_;
    const int64_t larger = rows_ % world_;  // this many owners, from 0 on, have one row more
    const int64_t in_larger = larger * (share + 1);
    if (id < in_larger) return {static_cast<int>(id / (share + 1)), id % (share + 1)};
    return {static_cast<int>(larger + (id - in_larger) / share), (id - in_larger) % share};
  }
  const int64_t slot = permutation_ ? (*permutation_)(id) : id;
  return {static_cast<int>(slot % world_), slot / world_};
}

int64_t RowLayout::id_at(const Place& place) const {
  if (placement_ == Placement::Block) {
    const int64_t larger = std::min<int64_t>(place.owner, rows_ % world_);
    return place.owner * (rows_ / world_) + larger + place.row;
  }
  const int64_t slot = place.row * world_ + place.owner;
  return permutation_ ? permutation_->position_of(slot) : slot;
}

// The first owners have one row more, whatever the placement.
int64_t RowLayout::count(int owner) const { return rows_ / world_ + (owner < rows_ % world_ ? 1 : 0); }

// SplitMix64: every number of the row is the mixed value of a counter.
void make_initial_row(uint64_t seed_of_table, int64_t id, double scale, std::span<float> row) {
  constexpr double kUnit = 0x1p-53;
  uint64_t counter = mix(seed_of_table + kGoldenBits * static_cast<uint64_t>(id));
  for (float& value : row)
    value =
        static_cast<float>((static_cast<double>(mix(counter += kGoldenBits) >> 11) * kUnit * 2 - 1) * scale);
}

uint64_t seed_of_table(int64_t seed, std::string_view table) {
  uint64_t state = mix(static_cast<uint64_t>(seed) + kGoldenBits);
  for (const char letter : table) state = mix((state ^ static_cast<unsigned char>(letter)) + kGoldenBits);
  return state;
}

}  // namespace tutti::embedding
