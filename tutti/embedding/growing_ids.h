#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/base/json.h"
#include "tutti/embedding/row_memory.h"
#include "tutti/embedding/step_log.h"

// The ids of a table that grows: which have a row, and since when.
namespace tutti::embedding {

// Decides about an id that needs a row when the table has the maximum number of rows.
enum class WhenFull {
  Refuse,         // it gets no row: its lookups are zeros, which are not trained
  ReplaceOldest,  // the rows that were not looked up for the longest time are dropped
};

// Decides when an id gets a row, and when it loses the row. Lookups count in training steps only.
struct Growth {
  // The maximum number of rows of the table on all owners together; 0: no limit. It holds for each of 840
  // parts of the ids (RowLayout::kBuckets), with an equal share, rounded up.
  int64_t most_rows = 0;
  WhenFull when_full = WhenFull::Refuse;
  // An id gets its row after so many lookups. If that is more than 1, it gets the row at the end of the step,
  // and the lookups before are zeros, which are not trained.
  int64_t admit_after = 1;
  // When a checkpoint is saved, drops the rows that were not looked up in so many steps; 0: none.
  int64_t evict_unused_for = 0;
  // When a checkpoint is saved, drops the rows that were looked up fewer times; 0: none.
  int64_t evict_below = 0;
};
Json to_json(const Growth& growth);
Growth growth_of_json(const Json& json);

// Counts of the ids of a table, on one owner or on all.
struct GrowthCounts {
  int64_t rows = 0;      // that exist
  int64_t waiting = 0;   // ids that were looked up, but not often enough
  int64_t admitted = 0;  // rows that were made so far
  int64_t evicted = 0;   // rows that were dropped so far
  int64_t refused = 0;   // how often an id got no row because the table was full

  GrowthCounts& operator+=(const GrowthCounts& more);
};
Json to_json(const GrowthCounts& counts);
GrowthCounts counts_of_json(const Json& json);

// Numbers that have a slot each, with the number of lookups and the step of the last one. Slots are reused.
// Not thread-safe.
class IdSlots {
 public:
  static constexpr int64_t kNone = -1;
  static constexpr int64_t kSmallest = 1024;  // the number of slots for which there is room at first

  explicit IdSlots(RowPlace place = {});
  // From now on, saves each entry before it is changed, as this array of the log.
  void keep_log(StepLog* log, int64_t array);
  // The memory of the entries. If it is changed by others, read_memory() takes the numbers that it has.
  int64_t* memory() const { return static_cast<int64_t*>(memory_.data_ptr()); }
  void read_memory();
  void reserve(int64_t slots);
  void clear();

  // Returns the slot of a number, or kNone.
  int64_t find(int64_t number) const;
  // Gives the number, which has none, a slot.
  int64_t insert(int64_t number, int64_t lookups, int64_t last_step);
  void erase(int64_t slot);

  int64_t size() const { return size_; }
  // One past the highest slot that was ever used.
  int64_t slots() const { return slots_; }
  // The number in a slot; kNone if it is free.
  int64_t number_in(int64_t slot) const { return ~entry(slot)[kInverted]; }
  int64_t lookups(int64_t slot) const { return entry(slot)[kLookups]; }
  int64_t last_step(int64_t slot) const { return entry(slot)[kLastStep]; }
  // Counts more lookups, in this step.
  void look_up(int64_t slot, int64_t lookups, int64_t step);

 private:
  // An entry is three words: the bits of the number inverted, so that zeros are a free slot, the number of
  // lookups, and the step of the last one.
  enum Word { kInverted, kLookups, kLastStep, kWords };
  const int64_t* entry(int64_t slot) const { return entries_ + slot * kWords; }
  void change(int64_t slot, int64_t number, int64_t lookups, int64_t last_step);
  size_t place_of(int64_t number) const;
  void enlarge();

  RowPlace place_;
  StepLog* log_ = nullptr;
  int64_t array_ = 0;
  torch::Tensor memory_;        // (slots, kWords), with room for more slots
  int64_t* entries_ = nullptr;  // in the memory
  int64_t slots_ = 0;
  std::vector<int64_t> free_;  // slots
  // Open addressing with linear probing: a slot + 1, or 0. The numbers are permuted, so their bits are their
  // hash.
  std::vector<uint32_t> index_;
  int64_t size_ = 0;
};

// The ids of one owner that have a row, by their places (RowLayout). What happens to an id depends on the
// steps alone, and not on the number of owners. Not thread-safe.
class GrowingIds {
 public:
  explicit GrowingIds(const Growth& growth, const RowPlace& place = {});

  // From now on, changes can be taken back by the log. `first` is the first of kArrays arrays that it has.
  static constexpr int64_t kArrays = 3;
  void keep_log(StepLog* log, int64_t first);
  std::array<int64_t*, kArrays> arrays() const;
  // Takes the ids that the memory has, after it was changed by others.
  void read_memory();
  // Makes room for so many slots of rows and of waiting ids.
  void reserve(int64_t rows, int64_t waiting);
  // Returns how many entries a step that looks up so many rows may change at most.
  int64_t most_changes(int64_t rows) const;

  const IdSlots& rows() const { return rows_; }
  // The ids that were not looked up often enough.
  const IdSlots& waiting() const { return waiting_; }
  // Returns true if a lookup of this row, which does not exist, gives its initial values, and otherwise
  // zeros.
  bool shows_initial_values(int64_t row) const;

  // A row that no longer exists.
  struct Dropped {
    int64_t row = 0;
    int64_t slot = 0;  // a new row may have it by now
  };
  // The result of count().
  struct Counted {
    std::vector<int64_t> slots;    // of the rows that the step updates; IdSlots::kNone for the others
    std::vector<int64_t> made;     // the slots of new rows, which have to be initialised
    std::vector<Dropped> dropped;  // the rows that no longer exist
  };
  // Counts the lookups of a step. `rows` are in ascending order, each once.
  Counted count(std::span<const int64_t> rows, std::span<const int64_t> lookups, int64_t step);
  // Drops rows and waiting ids as the options say for checkpoints, and returns the rows.
  std::vector<int64_t> evict(int64_t step);
  GrowthCounts counts() const;

  // Add what a checkpoint has: a row, whose slot is returned; a waiting id; the counts of the past.
  int64_t put(int64_t row, int64_t lookups, int64_t last_step);
  void put_waiting(int64_t row, int64_t lookups, int64_t last_step);
  void put_counts(const GrowthCounts& counts);
  void drop(int64_t row);
  void clear();

 private:
  bool limited() const { return most_in_bucket_ > 0; }
  std::vector<int64_t>& bucket_of(int64_t row);
  bool is_full(int64_t row) const;
  // The number of rows of a bucket that are replaced at once.
  int64_t most_to_replace() const;
  // Returns the new slot, or kNone if the table is full.
  int64_t admit(int64_t row, int64_t lookups, int64_t step, Counted& counted);
  void replace_oldest(int64_t row, int64_t step, Counted& counted);
  // Counts a lookup of an id without a row. Returns the number of its lookups so far.
  int64_t wait(int64_t row, int64_t lookups, int64_t step);

  const Growth growth_;
  const int64_t most_in_bucket_;  // 0: no limit
  IdSlots rows_;
  IdSlots waiting_;
  std::vector<std::vector<int64_t>> buckets_;  // the slots of the rows in each bucket, if there is a limit
  // The counts of ids that were admitted, evicted or refused since the table was made.
  enum Past { kAdmitted, kEvicted, kRefused, kPast };
  int64_t* past() const { return static_cast<int64_t*>(past_.data_ptr()); }
  void save_past();
  torch::Tensor past_;
  StepLog* log_ = nullptr;
  int64_t past_array_ = 0;
};

}  // namespace tutti::embedding
