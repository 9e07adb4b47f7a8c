#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/metrics/inputs.h"

// Areas of curves over examples that are sorted by their scores.
namespace tutti::metrics {

// The sums of the weights of the examples of each class that have the same score.
struct Bin {
  double score = 0;
  double positives = 0;
  double negatives = 0;
};

// Returns the bins of the examples of one group, by ascending score. The examples must be sorted by
// is_before().
std::vector<Bin> bins_of(std::span<const Example> examples);

// Computes the area under the ROC curve: Mann and Whitney's statistic, divided by the product of the weights
// of both classes. Takes bins by ascending score. Returns nullopt without weight in one of the classes.
std::optional<double> auc_of(std::span<const Bin> bins);

// Computes the average precision: the sum over the scores of the recall gained there times the precision
// there. Returns nullopt without positives.
std::optional<double> average_precision_of(std::span<const Bin> bins);

// Returns the points of the curves: one at minus infinity, and one at each score.
std::vector<CurvePoint> curve_of(std::span<const Bin> bins);

// Returns the reason why these numbers of examples of each class, one of which is 0, do not make a curve.
std::string reason_without_class(uint64_t positives, uint64_t negatives, const std::string& weights);

// Keeps all examples, for metrics whose value depends on their ranking. The examples are sorted before use,
// so that sums over them have the same bits whatever the order in which they were added.
class ExampleList {
 public:
  // Groups and weights are sent to other workers only if there are such columns.
  explicit ExampleList(const Expected& expected)
      : has_groups_(!expected.group.empty()), has_weights_(!expected.weights.empty()) {}

  void add(const std::vector<Example>& examples);
  // Returns all examples, sorted by is_before(), until the list is changed.
  std::span<const Example> sorted() const;

  std::vector<double> counters() const;
  void merge(std::span<const double> counters);
  void clear() { examples_.clear(); }
  bool empty() const { return examples_.empty(); }

 private:
  size_t numbers_per_example() const { return 2 + (has_groups_ ? 2U : 0U) + (has_weights_ ? 1U : 0U); }

  bool has_groups_;
  bool has_weights_;
  mutable std::vector<Example> examples_;
  mutable bool is_sorted_ = true;
};

}  // namespace tutti::metrics
