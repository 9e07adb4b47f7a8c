#pragma once

#include <functional>
#include <string>

#include "tutti/metrics/metric.h"

// A label that is NaN is missing: its example is left out.
namespace tutti::metrics {

struct AccuracyOptions {
  // For predictions of one column: above it the answer is 1, else 0. 0 fits logits, 0.5 probabilities.
  double threshold = 0;
};

// "accuracy": the share of right answers. Predictions (n, classes, ...) answer with the greatest of dimension
// 1, labels are (n, ...) class numbers.
MetricPtr accuracy(const std::string& label, const AccuracyOptions& options = {});

// "auc": the area under the ROC curve, exact: the chance that a positive example scores above a negative one,
// a tie counting half. Predictions (n) or (n, 1) are scores; of (n, 2) the score is column 1 less column 0.
// Labels are 0 or 1. No value where one of the two classes is missing. Keeps each distinct score, and its
// counters are as many as these.
MetricPtr auc(const std::string& label);

// "mse" and "rmse": the mean squared difference between predictions and labels of the same shape, and its
// square root.
MetricPtr mse(const std::string& label);
MetricPtr rmse(const std::string& label);

// The mean over the examples of what `compute` returns: one value an example, or one for the whole batch,
// which then counts for each of its examples (a loss that is the mean over the batch).
using Compute = std::function<torch::Tensor(const torch::Tensor& prediction, const Batch& batch)>;
MetricPtr mean(const std::string& name, Compute compute);

}  // namespace tutti::metrics
