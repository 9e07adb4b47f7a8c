#include "tutti/embedding/growing_ids.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

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

IdSlots::IdSlots(RowPlace place) : place_(std::move(place)) {
  memory_ = place_.allocate ? place_.allocate(kSmallest * kWords, torch::kLong)
                            : torch::zeros({kSmallest * kWords}, torch::kLong);
  memory_ = memory_.view({-1, kWords});
  entries_ = memory();
}

void IdSlots::keep_log(StepLog* log, int64_t array) {
  log_ = log;
  array_ = array;
}

void IdSlots::read_memory() {
  slots_ = memory_.size(0);
  while (slots_ > 0 && number_in(slots_ - 1) == kNone) --slots_;
  free_.clear();
  for (int64_t slot = slots_ - 1; slot >= 0; --slot)
    if (number_in(slot) == kNone) free_.push_back(slot);
  size_ = slots_ - static_cast<int64_t>(free_.size());
  index_.assign(static_cast<size_t>(kSmallest), 0);
  while (2 * static_cast<size_t>(size_ + 1) > index_.size()) index_.resize(2 * index_.size());
  enlarge();
}

void IdSlots::reserve(int64_t slots) {
  const int64_t before = memory_.size(0);
  if (slots <= before) return;
  memory_ = enlarged(place_, memory_, std::max(slots, 2 * before));
  memory_.narrow(0, before, memory_.size(0) - before).zero_();
  entries_ = memory();
}

void IdSlots::clear() {
  memory_.zero_();
  slots_ = size_ = 0;
  free_.clear();
  index_.clear();
}

void IdSlots::change(int64_t slot, int64_t number, int64_t lookups, int64_t last_step) {
  if (log_ != nullptr) log_->save(array_, slot, entry(slot));
  int64_t* const to = entries_ + slot * kWords;
  to[kInverted] = ~number;
  to[kLookups] = lookups;
  to[kLastStep] = last_step;
}

void IdSlots::look_up(int64_t slot, int64_t lookups, int64_t step) {
  change(slot, number_in(slot), this->lookups(slot) + lookups, step);
}

// Returns the place in the index of the number or, if it has none, of the first free entry after its own.
size_t IdSlots::place_of(int64_t number) const {
  const size_t mask = index_.size() - 1;
  size_t place = static_cast<size_t>(number) & mask;
  while (index_[place] != 0 && number_in(index_[place] - 1) != number) place = (place + 1) & mask;
  return place;
}

int64_t IdSlots::find(int64_t number) const {
  if (index_.empty()) return kNone;
  const uint32_t slot = index_[place_of(number)];
  return slot == 0 ? kNone : static_cast<int64_t>(slot) - 1;
}

// At least half of the entries are free.
void IdSlots::enlarge() {
  index_.assign(std::max(static_cast<size_t>(kSmallest), 2 * index_.size()), 0);
  for (int64_t slot = 0; slot < slots_; ++slot) {
    if (number_in(slot) != kNone) index_[place_of(number_in(slot))] = static_cast<uint32_t>(slot + 1);
  }
}

int64_t IdSlots::insert(int64_t number, int64_t lookups, int64_t last_step) {
  if (2 * static_cast<size_t>(size_ + 1) > index_.size()) enlarge();
  int64_t slot = slots();
  if (free_.empty()) {
    if (slot >= std::numeric_limits<uint32_t>::max() - 1)
      fail(ErrorKind::Overloaded,
           "a table has more than {} rows on one task; use more tasks, or limit its rows", slot);
    reserve(slot + 1);
    ++slots_;
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  change(slot, number, lookups, last_step);
  index_[place_of(number)] = static_cast<uint32_t>(slot + 1);
  ++size_;
  return slot;
}

// Moves later entries of the same run to the place that becomes free, unless they would come before their own
// place (Knuth, "The Art of Computer Programming", volume 3, algorithm 6.4R).
void IdSlots::erase(int64_t slot) {
  const size_t mask = index_.size() - 1;
  size_t hole = place_of(number_in(slot));
  for (size_t next = (hole + 1) & mask; index_[next] != 0; next = (next + 1) & mask) {
    const size_t home = static_cast<size_t>(number_in(index_[next] - 1)) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    index_[hole] = index_[next];
    hole = next;
  }
  index_[hole] = 0;
  change(slot, kNone, 0, 0);
  free_.push_back(slot);
  --size_;
}

GrowingIds::GrowingIds(const Growth& growth, const RowPlace& place)
    : growth_(growth),
      most_in_bucket_((growth.most_rows + RowLayout::kBuckets - 1) / RowLayout::kBuckets),
      rows_(place),
      waiting_(place),
      buckets_(limited() ? static_cast<size_t>(RowLayout::kBuckets) : 0),
      past_(place.allocate ? place.allocate(kPast, torch::kLong) : torch::zeros({kPast}, torch::kLong)) {}

void GrowingIds::keep_log(StepLog* log, int64_t first) {
  rows_.keep_log(log, first);
  waiting_.keep_log(log, first + 1);
  log_ = log;
  past_array_ = first + 2;
}

std::array<int64_t*, GrowingIds::kArrays> GrowingIds::arrays() const {
  return {rows_.memory(), waiting_.memory(), past()};
}

void GrowingIds::read_memory() {
  rows_.read_memory();
  waiting_.read_memory();
  for (auto& bucket : buckets_) bucket.clear();
  for (int64_t slot = 0; limited() && slot < rows_.slots(); ++slot)
    if (rows_.number_in(slot) != IdSlots::kNone) bucket_of(rows_.number_in(slot)).push_back(slot);
}

void GrowingIds::reserve(int64_t rows, int64_t waiting) {
  rows_.reserve(rows);
  waiting_.reserve(waiting);
}

// An id may wait, get its row and wait no more, and be counted in it, and each bucket may drop its oldest
// rows once, and once more for each row that is dropped.
int64_t GrowingIds::most_changes(int64_t rows) const {
  constexpr int64_t kOfRow = 4;
  const int64_t dropped = std::min(rows, RowLayout::kBuckets) * most_to_replace() + rows;
  return 2 + kOfRow * rows + (limited() ? std::min(rows_.size(), dropped) : 0);
}

int64_t GrowingIds::most_to_replace() const {
  constexpr int64_t kShare = 8;
  return std::max<int64_t>(1, most_in_bucket_ / kShare);
}

void GrowingIds::save_past() {
  if (log_ != nullptr) log_->save(past_array_, 0, past());
}

void GrowingIds::put_counts(const GrowthCounts& counts) {
  past()[kAdmitted] = counts.admitted;
  past()[kEvicted] = counts.evicted;
  past()[kRefused] = counts.refused;
}

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
  const int64_t slot = rows_.insert(row, lookups, last_step);
  if (limited()) bucket_of(row).push_back(slot);
  return slot;
}

void GrowingIds::put_waiting(int64_t row, int64_t lookups, int64_t last_step) {
  waiting_.insert(row, lookups, last_step);
}

void GrowingIds::drop(int64_t row) {
  const int64_t slot = rows_.find(row);
  if (slot == IdSlots::kNone) return;
  if (limited()) std::erase(bucket_of(row), slot);
  rows_.erase(slot);
}

void GrowingIds::clear() {
  rows_.clear();
  waiting_.clear();
  for (auto& bucket : buckets_) bucket.clear();
  put_counts({});
}

// First all rows that exist are counted, so that none of them is replaced by another one of the same step.
GrowingIds::Counted GrowingIds::count(std::span<const int64_t> rows, std::span<const int64_t> lookups,
                                      int64_t step) {
  TUTTI_CHECK(rows.size() == lookups.size(), "{} rows, {} counts", rows.size(), lookups.size());
  save_past();
  Counted counted;
  counted.slots.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t slot = rows_.find(rows[i]);
    counted.slots.push_back(slot);
    if (slot == IdSlots::kNone) continue;
    rows_.look_up(slot, lookups[i], step);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (counted.slots[i] != IdSlots::kNone) continue;
    int64_t seen = lookups[i];
    if (growth_.admit_after > 1) {
      seen = wait(rows[i], lookups[i], step);
      if (seen < growth_.admit_after) continue;
    }
    const int64_t slot = admit(rows[i], seen, step, counted);
    if (slot == IdSlots::kNone) continue;
    if (growth_.admit_after > 1)
      waiting_.erase(waiting_.find(rows[i]));  // its lookups in this step were zeros
    else
      counted.slots[i] = slot;
  }
  return counted;
}

int64_t GrowingIds::wait(int64_t row, int64_t lookups, int64_t step) {
  int64_t slot = waiting_.find(row);
  if (slot == IdSlots::kNone)
    slot = waiting_.insert(row, lookups, step);
  else
    waiting_.look_up(slot, lookups, step);
  return waiting_.lookups(slot);
}

int64_t GrowingIds::admit(int64_t row, int64_t lookups, int64_t step, Counted& counted) {
  if (is_full(row) && growth_.when_full == WhenFull::ReplaceOldest) replace_oldest(row, step, counted);
  if (is_full(row)) {
    ++past()[kRefused];
    return IdSlots::kNone;
  }
  const int64_t slot = put(row, lookups, step);
  counted.made.push_back(slot);
  ++past()[kAdmitted];
  return slot;
}

// Drops an eighth of the bucket's rows at once, so that the search costs little for each; rows of this step
// stay.
void GrowingIds::replace_oldest(int64_t row, int64_t step, Counted& counted) {
  std::vector<int64_t>& bucket = bucket_of(row);
  const auto of_this_step = std::partition(bucket.begin(), bucket.end(),
                                           [&](int64_t slot) { return rows_.last_step(slot) < step; });
  const auto older = [&](int64_t a, int64_t b) {
    return std::pair(rows_.last_step(a), rows_.number_in(a)) <
           std::pair(rows_.last_step(b), rows_.number_in(b));
  };
  std::sort(bucket.begin(), of_this_step, older);
  const auto end = bucket.begin() + std::min<int64_t>(most_to_replace(), of_this_step - bucket.begin());
  for (auto slot = bucket.begin(); slot != end; ++slot) {
    counted.dropped.push_back({rows_.number_in(*slot), *slot});
    rows_.erase(*slot);
    ++past()[kEvicted];
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
  // One change for each, since there may be any number of them.
  const auto keep = [&] {
    if (log_ != nullptr) log_->keep_changes();
  };
  for (const int64_t row : dropped) {
    save_past();
    drop(row);
    ++past()[kEvicted];
    keep();
  }
  for (int64_t slot = 0; slot < waiting_.slots(); ++slot) {
    if (waiting_.number_in(slot) == IdSlots::kNone || !is_old(waiting_.last_step(slot))) continue;
    waiting_.erase(slot);
    keep();
  }
  return dropped;
}

GrowthCounts GrowingIds::counts() const {
  return {.rows = rows_.size(),
          .waiting = waiting_.size(),
          .admitted = past()[kAdmitted],
          .evicted = past()[kEvicted],
          .refused = past()[kRefused]};
}

}  // namespace tutti::embedding
