#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/metrics/large_pages.h"
#include "tutti/metrics/ranking.h"

namespace tutti::metrics {

// A number as an unsigned integer of the same size: the integers are ordered as the numbers are.
inline uint32_t key_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U);
}
inline uint64_t key_of(double number) {
  const auto bits = std::bit_cast<uint64_t>(number);
  return bits ^ (bits >> 63 != 0 ? ~uint64_t{0} : uint64_t{1} << 63);
}
inline double number_of(uint32_t key) {
  return std::bit_cast<float>(key ^ (key >> 31 != 0 ? 0x80000000U : 0xFFFFFFFFU));
}
inline double number_of(uint64_t key) {
  return std::bit_cast<double>(key ^ (key >> 63 != 0 ? uint64_t{1} << 63 : ~uint64_t{0}));
}

// Numbers and how often each occurs. Keeps the keys one by one until sorting shows that many are equal.
template <class Key>
class KeyCounts {
 public:
  struct Run {
    Key key;
    uint64_t count;
  };

  using Keys = std::vector<Key, LargePages<Key>>;

  void add(std::span<const Key> keys) { keys_.insert(keys_.end(), keys.begin(), keys.end()); }
  void add(Run run);
  uint64_t size() const { return keys_.size() + in_runs_; }
  // Takes back the keys that were added last, until size() is this, if nothing else was called since.
  void shrink(uint64_t size) { keys_.resize(size - in_runs_); }
  // Saves memory if many keys are equal. To be called now and then; usually does nothing.
  void compact();
  void clear() { *this = {}; }
  // Returns how many keys and runs are in memory.
  size_t kept() const { return keys_.size() + runs_.size(); }

  // Returns a cursor at the smallest key, which is valid until the next change.
  class Cursor;
  Cursor begin() const;

 private:
  static constexpr size_t kFirstCompaction = size_t{1} << 24;

  void sort() const;

  // Sorted when they are read.
  mutable Keys keys_;
  mutable std::vector<Run> runs_;
  uint64_t in_runs_ = 0;  // the sum of their counts
  size_t compact_at_ = kFirstCompaction;
};

template <class Key>
class KeyCounts<Key>::Cursor {
 public:
  Cursor(const Keys& keys, const std::vector<Run>& runs)
      : key_(keys.data()),
        keys_end_(keys.data() + keys.size()),
        run_(runs.data()),
        runs_end_(runs.data() + runs.size()) {}

  bool is_at_end() const { return key_ == keys_end_ && run_ == runs_end_; }
  // Returns the smallest key that is left. Requires that there is one.
  Key key() const {
    if (run_ == runs_end_) return *key_;
    return key_ == keys_end_ || run_->key < *key_ ? run_->key : *key_;
  }
  // Returns the count of this key, and passes over it; 0 if it is not the smallest that is left.
  uint64_t take(Key key) {
    const Key* const first = key_;
    while (key_ != keys_end_ && *key_ == key) ++key_;
    auto count = static_cast<uint64_t>(key_ - first);
    if (run_ != runs_end_ && run_->key == key) count += run_++->count;
    return count;
  }

 private:
  const Key* key_;
  const Key* const keys_end_;
  const Run* run_;
  const Run* const runs_end_;
};

// The number of examples of each class by score: all that an unweighted ranking depends on. Scores are kept
// as float32 as long as all of them are.
class ScoreCounts {
 public:
  // Counts scores (n), float32 or float64, and labels (n), both contiguous on the CPU. Returns false, and
  // counts nothing, if a label is not 0, 1 or NaN, or if the score of a label is NaN.
  [[nodiscard]] bool add(const torch::Tensor& scores, const torch::Tensor& labels);

  // Returns score, positives and negatives of each distinct score.
  std::vector<double> counters() const;
  void merge(std::span<const double> counters);
  void clear() { *this = {}; }

  uint64_t positives() const { return narrow_.positives.size() + wide_.positives.size(); }
  uint64_t negatives() const { return narrow_.negatives.size() + wide_.negatives.size(); }
  // Returns the area under the ROC curve, from exact counts; nullopt without examples of both classes.
  std::optional<double> auc() const;
  std::vector<Bin> bins() const;

 private:
  template <class Key>
  struct Classes {
    KeyCounts<Key> positives;
    KeyCounts<Key> negatives;
  };

  // Returns whether all examples are good. Bad ones were added too.
  template <class Key, class Score, class Label>
  static bool add_each(Classes<Key>& classes, const Score* score, const Label* label, int64_t size);
  template <class Score, class Key>
  static bool add(Classes<Key>& classes, const torch::Tensor& scores, const torch::Tensor& labels);
  template <class Key>
  static double statistic(const Classes<Key>& classes);
  template <class Key>
  static std::vector<Bin> bins(const Classes<Key>& classes);
  // Moves all scores to wide_ if it has any.
  void unite() const;

  mutable Classes<uint32_t> narrow_;  // scores that are float32
  mutable Classes<uint64_t> wide_;
};

}  // namespace tutti::metrics
