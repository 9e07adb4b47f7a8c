#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"

namespace tutti::metrics {

// A figure about predictions that is gathered batch by batch, on several workers if need be: each counts what
// it sees, and the counters of all are merged before the value is asked for. Not thread-safe.
class Metric {
 public:
  virtual ~Metric() = default;

  // The key in reports and event files: "accuracy".
  virtual const std::string& name() const = 0;
  // `prediction` has one row an example of `batch`, on the same device. Shapes that do not go together are
  // InvalidArgument. Does not wait for a GPU where it need not.
  virtual void update(const torch::Tensor& prediction, const Batch& batch) = 0;

  // Everything counted so far, to be sent to another worker. How many there are may depend on the data.
  virtual std::vector<double> counters() const = 0;
  // Adds what another metric of the same kind counted.
  virtual void merge(std::span<const double> counters) = 0;

  // Nothing where nothing was counted that could give a value.
  virtual std::optional<double> value() const = 0;
  virtual void reset() = 0;
  // One of the same kind that has counted nothing.
  virtual std::unique_ptr<Metric> clone() const = 0;
};

// Shared, because a braced list such as {accuracy("label"), auc("label")} can only copy what is in it.
using MetricPtr = std::shared_ptr<Metric>;
using List = std::vector<MetricPtr>;

}  // namespace tutti::metrics
