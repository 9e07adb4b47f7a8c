#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::metrics {

// The counts at one threshold: the sums of the weights of the examples by class and by whether their score,
// such as a probability, is above it. The precision of no examples is taken to be 1.
struct CurvePoint {
  double threshold = 0;
  double true_positives = 0;
  double false_positives = 0;
  double true_negatives = 0;
  double false_negatives = 0;

  double recall() const;               // NaN without positives
  double false_positive_rate() const;  // NaN without negatives
  double precision() const;
};

// A measure of predictions that is accumulated batch by batch, possibly on several workers: each worker
// counts its examples, and the counters are merged before the value is computed. Not thread-safe.
class Metric {
 public:
  virtual ~Metric() = default;

  // The key in reports and event files, such as "accuracy".
  virtual const std::string& name() const = 0;
  // Returns the columns of a batch that the metric is known to read; "" for one that was not given, such as
  // weights.
  virtual std::vector<std::string> columns() const { return {}; }
  // Counts a batch. `prediction` has one row per example of `batch`, on the same device. Throws
  // InvalidArgument, and counts nothing of the batch, if the metric cannot use its shapes or values.
  virtual void update(const torch::Tensor& prediction, const Batch& batch) = 0;

  // Returns everything counted so far, to be sent to another worker. The number of counters may depend on the
  // data. Whole numbers are exact up to 2^53.
  virtual std::vector<double> counters() const = 0;
  // Adds the counters of another metric of the same kind.
  virtual void merge(std::span<const double> counters) = 0;

  // Returns nullopt if the counted examples do not determine a value.
  virtual std::optional<double> value() const = 0;
  // Returns the reason why there is no value, such as "all 12 examples are of class 1". Only for a metric
  // without
  // a value.
  virtual std::string reason() const { return "no examples were counted"; }
  // Returns the points of the curve whose area is the value, by ascending threshold; empty if the value is
  // not the area under a curve with thresholds.
  virtual std::vector<CurvePoint> curve() const { return {}; }
  // Returns true if the thresholds of curve() are not spaced evenly from 0 to 1, as TensorBoard expects them.
  virtual bool has_uneven_thresholds() const { return false; }
  virtual void reset() = 0;
  // Returns a new metric of the same kind with empty counters.
  virtual std::unique_ptr<Metric> clone() const = 0;
};

// Shared, because a braced list such as {accuracy("label"), auc("label")} can only copy its elements.
using MetricPtr = std::shared_ptr<Metric>;
using List = std::vector<MetricPtr>;

// Returns the counters of all metrics of a list as one vector of finite numbers, which JSON can represent, so
// that workers exchange them at once.
std::vector<double> counters_of(const List& list);
// Adds what counters_of() has returned for a list of the same metrics.
void merge(const List& list, std::span<const double> counters);

}  // namespace tutti::metrics
