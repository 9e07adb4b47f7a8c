#include "tutti/embedding/row_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti::embedding {
namespace {

// Buckets are computed from the upper 53 bits of a key, so that no product has more than 63 bits.
constexpr int kNarrowed = 10;

constexpr std::array<std::pair<Placement, std::string_view>, 3> kNames = {
    {{Placement::Mod, "mod"}, {Placement::Block, "block"}, {Placement::Hash, "hash"}}};

// The finaliser of SplitMix64, as in mix_bits(), on numbers of 63 bits: a bijection of them. The inverse
// undoes its steps in the opposite order.
constexpr uint64_t kIdMask = (uint64_t{1} << RowLayout::kGrowingBits) - 1;
constexpr std::array<int, 3> kShifts = {30, 27, 31};
constexpr std::array<uint64_t, 2> kFactors = {0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL};

// Newton's iteration for the inverse of an odd number modulo 2^64: each step doubles the number of right
// bits.
constexpr uint64_t inverse_of(uint64_t odd) {
  uint64_t inverse = odd;
  for (int step = 0; step < 6; ++step) inverse *= 2 - odd * inverse;
  return inverse;
}

constexpr uint64_t undo_shift(uint64_t word, int shift) {
  uint64_t result = word;
  for (int done = shift; done < RowLayout::kGrowingBits; done += shift) result = word ^ (result >> shift);
  return result;
}

constexpr uint64_t permuted(uint64_t id) {
  for (size_t i = 0; i < kFactors.size(); ++i) id = ((id ^ (id >> kShifts[i])) * kFactors[i]) & kIdMask;
  return id ^ (id >> kShifts[2]);
}

constexpr uint64_t permuted_back(uint64_t word) {
  word = undo_shift(word, kShifts[2]);
  for (size_t i = kFactors.size(); i-- > 0;)
    word = undo_shift((word * inverse_of(kFactors[i])) & kIdMask, kShifts[i]);
  return word;
}

static_assert(permuted_back(permuted(0)) == 0 && permuted_back(permuted(kIdMask)) == kIdMask &&
              permuted_back(permuted(0x123456789abcdefULL)) == 0x123456789abcdefULL);

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

RowLayout::RowLayout(Placement placement, int64_t rows, int owners)
    : placement_(placement), rows_(rows), owners_(owners) {
  if (grows()) {
    key_bits_ = kGrowingBits;
    return;
  }
  constexpr uint64_t kKey = 0x7475747469;  // part of the format of checkpoints
  if (placement == Placement::Hash) permutation_.emplace(rows, kKey);
  row_bits_ = static_cast<int>(std::bit_width(static_cast<uint64_t>(count(0))));
  key_bits_ = row_bits_ + static_cast<int>(std::bit_width(static_cast<uint64_t>(owners)));
}

RowLayout::Place RowLayout::place_of(int64_t id) const {
  if (grows()) return place_of_key(permuted(static_cast<uint64_t>(id)));
  if (placement_ == Placement::Block) {
    const int64_t share = rows_ / owners_;
    const int64_t larger = rows_ % owners_;  // this many owners, from 0 on, have one row more
    const int64_t in_larger = larger * (share + 1);
    if (id < in_larger) return {static_cast<int>(id / (share + 1)), id % (share + 1)};
    return {static_cast<int>(larger + (id - in_larger) / share), (id - in_larger) % share};
  }
  const int64_t slot = permutation_ ? (*permutation_)(id) : id;
  // Division of 32-bit numbers is several times as fast.
  if (slot <= std::numeric_limits<uint32_t>::max()) {
    const auto narrow = static_cast<uint32_t>(slot);
    const auto by = static_cast<uint32_t>(owners_);
    return {static_cast<int>(narrow % by), narrow / by};
  }
  return {static_cast<int>(slot % owners_), slot / owners_};
}

int64_t RowLayout::id_at(const Place& place) const {
  if (grows()) return static_cast<int64_t>(permuted_back(static_cast<uint64_t>(place.row)));
  if (placement_ == Placement::Block) {
    const int64_t larger = std::min<int64_t>(place.owner, rows_ % owners_);
    return place.owner * (rows_ / owners_) + larger + place.row;
  }
  const int64_t slot = place.row * owners_ + place.owner;
  return permutation_ ? permutation_->position_of(slot) : slot;
}

uint64_t RowLayout::key_of(int64_t id) const {
  const Place place = place_of(id);
  if (grows()) return static_cast<uint64_t>(place.row);
  return static_cast<uint64_t>(place.owner) << row_bits_ | static_cast<uint64_t>(place.row);
}

int64_t RowLayout::bucket_of(int64_t row) {
  return ((row >> kNarrowed) * kBuckets) >> (kGrowingBits - kNarrowed);
}

uint64_t RowLayout::first_key(int owner) const {
  if (!grows()) return static_cast<uint64_t>(owner) << row_bits_;
  // The first bucket of the owner, and the first key of that bucket.
  const int64_t bucket = (owner * kBuckets + owners_ - 1) / owners_;
  const auto numerator = static_cast<uint64_t>(bucket) << (kGrowingBits - kNarrowed);
  return ((numerator + kBuckets - 1) / kBuckets) << kNarrowed;
}

// The first owners have one row more, whatever the placement.
int64_t RowLayout::count(int owner) const { return rows_ / owners_ + (owner < rows_ % owners_ ? 1 : 0); }

// SplitMix64: every number of the row is the mixed value of a counter.
void make_initial_row(uint64_t seed_of_table, int64_t id, double scale, std::span<float> row) {
  constexpr double kUnit = 0x1p-53;
  uint64_t counter = mix_bits(seed_of_table + kGoldenBits * static_cast<uint64_t>(id));
  for (float& value : row)
    value = static_cast<float>((static_cast<double>(mix_bits(counter += kGoldenBits) >> 11) * kUnit * 2 - 1) *
                               scale);
}

uint64_t seed_of_table(int64_t seed, std::string_view table) {
  uint64_t state = mix_bits(static_cast<uint64_t>(seed) + kGoldenBits);
  for (const char letter : table)
    state = mix_bits((state ^ static_cast<unsigned char>(letter)) + kGoldenBits);
  return state;
}

}  // namespace tutti::embedding
