#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/metrics/ranking.h"

namespace tutti::metrics {

// The number of examples of each class by score: all that an unweighted ranking depends on. Keeps the scores
// one by one, in as many bytes as they have, until sorting shows that many are equal.
class ScoreCounts {
 public:
  // Counts scores (n), float32 or float64, and labels (n), both contiguous on the CPU. Returns false without
  // counting anything if a label is not 0, 1 or NaN, or if the score of a label is NaN.
  [[nodiscard]] bool add(const torch::Tensor& scores, const torch::Tensor& labels);

  // Returns score, positives and negatives of each distinct score.
  std::vector<double> counters() const;
  void merge(std::span<const double> counters);
  void clear() { *this = {}; }

  uint64_t positives() const { return totals_[1]; }
  uint64_t negatives() const { return totals_[0]; }
  // Returns the area under the ROC curve, from exact counts; nullopt without examples of both classes.
  std::optional<double> auc() const;
  std::vector<Bin> bins() const;
  // Returns how many scores and bins are in memory.
  size_t kept() const;

 private:
  // The keys (key_of()) of the scores of both classes, the negatives first. Sorted when they are read.
  template <class Key>
  using Classes = std::array<std::vector<Key>, 2>;

  template <class Score, class Key>
  bool add_to(Classes<Key>& classes, const torch::Tensor& scores, const torch::Tensor& labels);
  void compact();
  void sort() const;
  // Calls visit(score, positives, negatives) for each distinct score, in ascending order.
  template <class Visit>
  void each_bin(const Visit& visit) const;

  static constexpr size_t kFirstCompaction = size_t{1} << 24;

  mutable Classes<uint32_t> narrow_;  // of float32
  mutable Classes<uint64_t> wide_;    // of float64
  mutable std::vector<Bin> bins_;     // of several examples each
  std::array<uint64_t, 2> totals_{};
  size_t compact_at_ = kFirstCompaction;
};

}  // namespace tutti::metrics
