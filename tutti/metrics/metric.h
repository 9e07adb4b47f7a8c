#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::metrics {

// A measure of predictions that is accumulated batch by batch, possibly on several workers: each worker
// counts its own examples, and the counters are merged before the value is computed. Not thread-safe.
class Metric {
 public:
  virtual ~Metric() = default;

  // The key in reports and event files, such as "accuracy".
  virtual const std::string& name() const = 0;
  // Counts a batch. `prediction` has one row per example of `batch`, on the same device. Throws
  // InvalidArgument if the shapes do not match. Does not synchronise with a GPU unless it must.
  virtual void update(const torch::Tensor& prediction, const Batch& batch) = 0;

  // Returns everything counted so far, to be sent to another worker. Their number may depend on the data.
  virtual std::vector<double> counters() const = 0;
  // Adds the counters of another metric of the same kind.
  virtual void merge(std::span<const double> counters) = 0;

  // Returns nullopt if the counted examples do not determine a value.
  virtual std::optional<double> value() const = 0;
  virtual void reset() = 0;
  // Returns a new metric of the same kind with empty counters.
  virtual std::unique_ptr<Metric> clone() const = 0;
};

// Shared, because a braced list such as {accuracy("label"), auc("label")} can only copy its elements.
using MetricPtr = std::shared_ptr<Metric>;
using List = std::vector<MetricPtr>;

}  // namespace tutti::metrics
