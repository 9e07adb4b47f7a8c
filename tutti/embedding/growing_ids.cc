#include "tutti/embedding/growing_ids.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/embedding/row_layout.h"

namespace tutti::embedding {

Json to_json(const Growth& growth) {
  return {{"most_rows", growth.most_rows},
          {"replaces_oldest", growth.when_full == WhenFull::ReplaceOldest},
          {"admit_after", growth.admit_after},
          {"evict_unused_for", growth.evict_unused_for},
          {"evict_below", growth.evict_below}};
}

Growth growth_of_json(const Json& json) {
  const auto number = [&](const char* name) {
    return value_in<int64_t>(json, name, "the growth of a table");
  };
  return {.most_rows = number("most_rows"),
          .when_full = json.value("replaces_oldest", false) ? WhenFull::ReplaceOldest : WhenFull::Refuse,
          .admit_after = number("admit_after"),
          .evict_unused_for = number("evict_unused_for"),
          .evict_below = number("evict_below")};
}

Json to_json(const GrowthCounts& counts) {
  return {{"rows", counts.rows},
          {"waiting", counts.waiting},
          {"admitted", counts.admitted},
          {"evicted", counts.evicted},
          {"refused", counts.refused}};
}

GrowthCounts counts_of_json(const Json& json) {
  const auto number = [&](const char* name) {
    return value_in<int64_t>(json, name, "the counts of a table", 0);
  };
  return {number("rows"), number("waiting"), number("admitted"), number("evicted"), number("refused")};
}

GrowthCounts& GrowthCounts::operator+=(const GrowthCounts& more) {
  rows += more.rows;
  waiting += more.waiting;
  admitted += more.admitted;
  evicted += more.evicted;
  refused += more.refused;
  return *this;
}

// Returns the place in the index of the number or, if it has none, of the first free entry after its own.
size_t IdSlots::place_of(int64_t number) const {
  const size_t mask = index_.size() - 1;
  size_t place = static_cast<size_t>(number) & mask;
  while (index_[place] != 0 && entries_[index_[place] - 1].number != number) place = (place + 1) & mask;
  return place;
}

int64_t IdSlots::find(int64_t number) const {
  if (index_.empty()) return kNone;
  const uint32_t slot = index_[place_of(number)];
  return slot == 0 ? kNone : static_cast<int64_t>(slot) - 1;
}

// At least half of the entries are free.
void IdSlots::enlarge() {
  constexpr size_t kSmallest = 1024;
  index_.assign(std::max(kSmallest, 2 * index_.size()), 0);
  for (size_t slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].number != kNone)
      index_[place_of(entries_[slot].number)] = static_cast<uint32_t>(slot + 1);
  }
}

int64_t IdSlots::insert(int64_t number) {
  if (2 * static_cast<size_t>(size_ + 1) > index_.size()) enlarge();
  int64_t slot = slots();
  if (free_.empty()) {
    if (slot >= std::numeric_limits<uint32_t>::max() - 1)
      fail(ErrorKind::Overloaded,
           "a table has more than {} rows on one task; use more tasks, or limit its rows", slot);
    entries_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  entries_[static_cast<size_t>(slot)] = {.number = number};
  index_[place_of(number)] = static_cast<uint32_t>(slot + 1);
  ++size_;
  return slot;
}

// Moves later entries of the same run to the place that becomes free, unless they would come before their own
// place (Knuth, "The Art of Computer Programming", volume 3, algorithm 6.4R).
void IdSlots::erase(int64_t slot) {
  Entry& entry = entries_[static_cast<size_t>(slot)];
  const size_t mask = index_.size() - 1;
  size_t hole = place_of(entry.number);
  for (size_t next = (hole + 1) & mask; index_[next] != 0; next = (next + 1) & mask) {
    const size_t home = static_cast<size_t>(entries_[index_[next] - 1].number) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    index_[hole] = index_[next];
    hole = next;
  }
  index_[hole] = 0;
  entry = {};
  free_.push_back(slot);
  --size_;
}

GrowingIds::GrowingIds(const Growth& growth)
    : growth_(growth),
      most_in_bucket_((growth.most_rows + RowLayout::kBuckets - 1) / RowLayout::kBuckets),
      buckets_(limited() ? static_cast<size_t>(RowLayout::kBuckets) : 0) {}

std::vector<int64_t>& GrowingIds::bucket_of(int64_t row) {
  return buckets_[static_cast<size_t>(RowLayout::bucket_of(row))];
}

bool GrowingIds::is_full(int64_t row) const {
  return limited() && static_cast<int64_t>(buckets_[static_cast<size_t>(RowLayout::bucket_of(row))].size()) >=
                          most_in_bucket_;
}

bool GrowingIds::shows_initial_values(int64_t row) const {
  return growth_.admit_after <= 1 && (growth_.when_full == WhenFull::ReplaceOldest || !is_full(row));
}

int64_t GrowingIds::put(int64_t row, int64_t lookups, int64_t last_step) {
  const int64_t slot = rows_.insert(row);
  rows_.lookups(slot) = lookups;
  rows_.last_step(slot) = last_step;
  if (limited()) bucket_of(row).push_back(slot);
  return slot;
}

void GrowingIds::put_waiting(int64_t row, int64_t lookups, int64_t last_step) {
  const int64_t slot = waiting_.insert(row);
  waiting_.lookups(slot) = lookups;
  waiting_.last_step(slot) = last_step;
}

void GrowingIds::drop(int64_t row) {
  const int64_t slot = rows_.find(row);
  if (slot == IdSlots::kNone) return;
  if (limited()) std::erase(bucket_of(row), slot);
  rows_.erase(slot);
}

void GrowingIds::clear() {
  rows_ = {};
  waiting_ = {};
  for (auto& bucket : buckets_) bucket.clear();
  past_ = {};
}

// First all rows that exist are counted, so that none of them is replaced by another one of the same step.
GrowingIds::Counted GrowingIds::count(std::span<const int64_t> rows, std::span<const int64_t> lookups,
                                      int64_t step) {
  TUTTI_CHECK(rows.size() == lookups.size(), "{} rows, {} counts", rows.size(), lookups.size());
  Counted counted;
  counted.slots.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t slot = rows_.find(rows[i]);
    counted.slots.push_back(slot);
    if (slot == IdSlots::kNone) continue;
    rows_.lookups(slot) += lookups[i];
    rows_.last_step(slot) = step;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (counted.slots[i] != IdSlots::kNone) continue;
    int64_t seen = lookups[i];
    if (growth_.admit_after > 1) {
      seen = wait(rows[i], lookups[i], step);
      if (seen < growth_.admit_after) continue;
    }
    const int64_t slot = admit(rows[i], step, counted);
    if (slot == IdSlots::kNone) continue;
    rows_.lookups(slot) = seen;
    if (growth_.admit_after > 1)
      waiting_.erase(waiting_.find(rows[i]));  // its lookups in this step were zeros
    else
      counted.slots[i] = slot;
  }
  return counted;
}

int64_t GrowingIds::wait(int64_t row, int64_t lookups, int64_t step) {
  int64_t slot = waiting_.find(row);
  if (slot == IdSlots::kNone) slot = waiting_.insert(row);
  waiting_.last_step(slot) = step;
  return waiting_.lookups(slot) += lookups;
}

int64_t GrowingIds::admit(int64_t row, int64_t step, Counted& counted) {
  if (is_full(row) && growth_.when_full == WhenFull::ReplaceOldest) replace_oldest(row, step, counted);
  if (is_full(row)) {
    ++past_.refused;
    return IdSlots::kNone;
  }
  const int64_t slot = put(row, 0, step);
  counted.made.push_back(slot);
  ++past_.admitted;
  return slot;
}

// Drops an eighth of the bucket's rows at once, so that the search costs little for each; rows of this step
// stay.
void GrowingIds::replace_oldest(int64_t row, int64_t step, Counted& counted) {
  constexpr int64_t kShare = 8;
  std::vector<int64_t>& bucket = bucket_of(row);
  const auto of_this_step = std::partition(bucket.begin(), bucket.end(),
                                           [&](int64_t slot) { return rows_.last_step(slot) < step; });
  const auto older = [&](int64_t a, int64_t b) {
    return std::pair(rows_.last_step(a), rows_.number_in(a)) <
           std::pair(rows_.last_step(b), rows_.number_in(b));
  };
  std::sort(bucket.begin(), of_this_step, older);
  const int64_t most = std::max<int64_t>(1, most_in_bucket_ / kShare);
  const auto end = bucket.begin() + std::min<int64_t>(most, of_this_step - bucket.begin());
  for (auto slot = bucket.begin(); slot != end; ++slot) {
    counted.dropped.push_back({rows_.number_in(*slot), *slot});
    rows_.erase(*slot);
    ++past_.evicted;
  }
  bucket.erase(bucket.begin(), end);
}

std::vector<int64_t> GrowingIds::evict(int64_t step) {
  const auto is_old = [&](int64_t last_step) {
    return growth_.evict_unused_for > 0 && step - last_step > growth_.evict_unused_for;
  };
  std::vector<int64_t> dropped;
  for (int64_t slot = 0; slot < rows_.slots(); ++slot) {
    if (rows_.number_in(slot) == IdSlots::kNone) continue;
    if (is_old(rows_.last_step(slot)) || rows_.lookups(slot) < growth_.evict_below)
      dropped.push_back(rows_.number_in(slot));
  }
  for (const int64_t row : dropped) drop(row);
  past_.evicted += static_cast<int64_t>(dropped.size());
  for (int64_t slot = 0; slot < waiting_.slots(); ++slot) {
    if (waiting_.number_in(slot) != IdSlots::kNone && is_old(waiting_.last_step(slot))) waiting_.erase(slot);
  }
  return dropped;
}

GrowthCounts GrowingIds::counts() const {
  GrowthCounts counts = past_;
  counts.rows = rows_.size();
  counts.waiting = waiting_.size();
  return counts;
}

}  // namespace tutti::embedding
