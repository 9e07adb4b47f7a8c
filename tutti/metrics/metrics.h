#pragma once

#include <functional>
#include <string>

#include "tutti/metrics/metric.h"

// Examples whose label is NaN are not counted. For the same predictions, the value of each metric is the same
// to the bit, no matter how the examples are distributed over workers.
namespace tutti::metrics {

// Two metrics of one evaluation need different names; an empty name is the metric's own.
struct MetricOptions {
  std::string name = {};
};

struct AccuracyOptions {
  // If the predictions have one column, greater values stand for class 1, others for class 0. Use 0 for
  // logits and 0.5 for probabilities.
  double threshold = 0;
  std::string name = {};
};

// "accuracy": the share of correct predictions. Of predictions (n, classes, ...) the predicted class is the
// one with the greatest value along dimension 1. Labels are class numbers (n, ...), or one-hot with the shape
// of the predictions.
MetricPtr accuracy(const std::string& label, const AccuracyOptions& options = {});

// "auc": the exact area under the ROC curve, that is, the probability that a positive example has a higher
// score than a negative one; ties count half. Predictions (n) or (n, 1) are scores; for (n, 2) the score is
// column 1 minus column 0. Labels are 0 or 1. Has no value if there are no examples of one of the two
// classes. Memory and the size of the counters grow with the number of distinct scores.
MetricPtr auc(const std::string& label, const MetricOptions& options = {});

// "mse" and "rmse": the mean squared difference between predictions and labels of the same shape, and its
// square root.
MetricPtr mse(const std::string& label, const MetricOptions& options = {});
MetricPtr rmse(const std::string& label, const MetricOptions& options = {});

// The mean of `compute` over all examples. `compute` returns one value per example, or a single value, such
// as a mean loss, that counts for each example of the batch.
using Compute = std::function<torch::Tensor(const torch::Tensor& prediction, const Batch& batch)>;
MetricPtr mean(const std::string& name, Compute compute);

// Throws InvalidArgument if two metrics have the same name, since one value would replace the other.
void require_distinct_names(const List& list);

}  // namespace tutti::metrics
