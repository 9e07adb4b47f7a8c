#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/metrics/metric.h"

// The metrics of Tutti. `label` is the name of a column of the batch. Options that all of them have:
//   name     the key of the value in reports; empty: the default of the metric. Two metrics of one evaluation
//            need different names.
//   weights  the name of a column with one number per example that says how much the example counts; empty:
//            all count 1.
// Examples whose label is NaN or whose weight is 0 are not counted, and their predictions may be anything.
// docs/evaluation.md says where other libraries define a metric differently.
// For the same predictions, the value of each metric has the same bits, no matter how the examples are
// distributed over batches and workers: counts are whole numbers, and sums are rounded once.
//
// Errors are InvalidArguments that update() throws: shapes that do not match, a prediction that is NaN or,
// where probabilities are needed, outside [0, 1], a label that is not one of the expected values, a weight
// that is negative or not finite.
namespace tutti::metrics {

// The options that all metrics have.
struct MetricOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  std::string name = {};     // of the value; empty: the default of the metric
};

// For metrics that answer yes or no: predictions above the threshold stand for class 1. Use 0 for logits and
// 0.5 for probabilities.
struct ThresholdOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  double threshold = 0;      // predictions above it stand for class 1
  std::string name = {};     // of the value; empty: the default of the metric
};

// Options of accuracy().
struct AccuracyOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  double threshold = 0;      // for predictions with one column
  // The dimension of the predictions that has one entry per class, such as 1 for images (n, classes, height,
  // width), or -1 for texts (n, tokens, classes). Empty: 1 or -1, whichever fits the shape of the labels;
  // that both fit is an error.
  std::optional<int64_t> class_dim = {};
  int64_t ignore = -100;  // labels with this number are not counted, as in PyTorch's cross_entropy
  std::string name = {};  // of the value; empty: the default of the metric
};

// "accuracy": the share of correct predictions. For predictions (n, classes, ...) or (n, ..., classes), the
// predicted class is the one with the greatest value, or the first of several such classes. Labels are class
// numbers (n, ...), or one-hot with the shape of the predictions. All positions of an example, such as the
// tokens of a text, have the weight of the example.
MetricPtr accuracy(const std::string& label, const AccuracyOptions& options = {});

// Options of perplexity().
struct PerplexityOptions {
  std::string weights = {};               // a column with a weight for each example; empty: all count 1
  std::optional<int64_t> class_dim = {};  // these two as in AccuracyOptions
  int64_t ignore = -100;                  // labels with this number are not counted
  std::string name = {};                  // of the value; empty: the default of the metric
};

// "perplexity": exp of the mean cross entropy over all counted tokens of all examples and batches.
// Predictions are logits (n, tokens, classes), or with other dimensions as for accuracy(); labels are class
// numbers (n, tokens). It is computed in double precision, and is infinite if the probability of a label is
// 0.
MetricPtr perplexity(const std::string& label, const PerplexityOptions& options = {});

// "precision": the share of class 1 among the examples that are predicted to be of class 1. "recall": the
// share of the examples of class 1 that are predicted to be of class 1. Predictions are scores as for auc(),
// labels are 0 or 1. There is no value if no example is predicted to be (precision), or is (recall), of
// class 1.
MetricPtr precision(const std::string& label, const ThresholdOptions& options = {});
MetricPtr recall(const std::string& label, const ThresholdOptions& options = {});

// The curve that thresholds make: recall against the rate of false positives, or precision against recall.
enum class Curve { ROC, PR };

// How the area between the points of two neighbouring thresholds is computed.
enum class Summation {
  Trapezoidal,
  // On a PR curve, interpolates the number of true positives instead of the precision, which is not linear
  // between two points (Davis and Goadrich, The Relationship Between Precision-Recall and ROC Curves, 2006).
  // On a ROC curve, the same as Trapezoidal.
  CarefulInterpolation,
  Minoring,  // a lower bound: the smaller ordinate of both points
  Majoring,  // an upper bound: the greater one
};

// Options of auc().
struct AucOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  // 0: the exact area under the ROC curve, which needs memory for each distinct score. 2 or more: the area
  // through the points of that many thresholds, whose counters are few. They are evenly spaced from 0 to 1;
  // the first and the last are 1e-7 outside, as in TensorFlow, so that they include all or no probabilities.
  int64_t num_thresholds = 0;
  // The thresholds themselves, numbers in [0, 1] in any order, in place of num_thresholds. The two outside of
  // [0, 1] are added, as in Keras.
  std::vector<double> thresholds = {};
  Curve curve = Curve::ROC;                      // needs thresholds, as does the next option
  Summation summation = Summation::Trapezoidal;  // how the area is computed; needs thresholds
  std::string name = {};                         // of the value; empty: the default of the metric
};

// "auc", or "pr_auc" for Curve::PR. The exact area under the ROC curve is the probability that a positive
// example has a higher score than a negative one; ties count half. Predictions (n) or (n, 1) are scores; for
// (n, 2) the score is column 1 minus column 0. With thresholds, predictions (n) or (n, 1) are
// probabilities. Labels are 0 or 1. A ROC curve needs examples of both classes, a PR curve positive ones.
MetricPtr auc(const std::string& label, const AucOptions& options = {});

// Returns the points of an auc() or an average_precision(), by ascending threshold: one point for each
// threshold or, if the metric is exact, for each distinct score, after one at minus infinity. So the last
// point has no predictions of class 1. The points include other workers' examples after an evaluation. Throws
// InvalidArgument for any other metric.
std::vector<CurvePoint> curve_points(const Metric& metric);

// "average_precision": the mean of the precisions at the scores of the positive examples, which is the exact
// area under the steps of the PR curve. Predictions and labels as for auc(). Has no value without positives.
MetricPtr average_precision(const std::string& label, const MetricOptions& options = {});

// "log_loss": the mean of -log(p), where p is the probability that was predicted for the actual class.
// Predictions are probabilities (n) or (n, 1) of class 1 for labels 0 and 1, or (n, classes) for class
// numbers or one-hot labels. They are clipped to [e, 1 - e], where e is the precision (epsilon) of float64
// for float64 and of float32 for all others, so that a single certain error is not infinite.
MetricPtr log_loss(const std::string& label, const MetricOptions& options = {});

// "normalized_entropy": the log_loss() divided by the log loss of a constant prediction, the share of class 1
// (X. He and others, Practical Lessons from Predicting Clicks on Ads at Facebook, 2014). Below 1, the
// predictions are better than the constant. Predictions are probabilities (n) or (n, 1), labels are 0 or 1.
// Has no value without examples of both classes.
MetricPtr normalized_entropy(const std::string& label, const MetricOptions& options = {});

// "calibration": the mean predicted probability of class 1 divided by the share of class 1; 1 is ideal.
// Labels are 0 or 1. Has no value without positives.
MetricPtr calibration(const std::string& label, const MetricOptions& options = {});

// Whether a mean over groups gives the same weight to all groups, or to all examples.
enum class By { Groups, Examples };

// Options of group_auc().
struct GroupAucOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  By by = By::Examples;      // Examples: each group counts with the sum of the weights of its examples
  std::string name = {};     // of the value; empty: the default of the metric
};

// "group_auc": the mean of the exact auc() of each group, such as the impressions of each user. `group` is
// the name of a column with a whole number per example. Groups may be spread over batches and workers, so all
// examples are kept and gathered. Groups with examples of one class only are left out.
MetricPtr group_auc(const std::string& label, const std::string& group, const GroupAucOptions& options = {});

// The gain of an example of relevance r: r, or 2^r - 1.
enum class Gain { Linear, Exponential };

// Options of ndcg().
struct NdcgOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
  int64_t at = 0;            // only this number of ranks of each group count; 0: all
  Gain gain = Gain::Linear;  // of an example of a relevance
  std::string name = {};     // of the value; empty: the default of the metric
};

// "ndcg", or "ndcg@10" for .at = 10: the normalised discounted cumulative gain, as the mean over all groups,
// such as the documents of each query. The example at rank i of its group, by descending score, adds
// gain / log2(i + 1); examples of the same score share the mean of their ranks' discounts. The sum is divided
// by the sum of the best order. Labels are relevances of 0 or more. A weight multiplies the gain of its
// example. Groups without any gain are left out. Scores are as for group_auc(), and all examples are kept
// too.
MetricPtr ndcg(const std::string& label, const std::string& group, const NdcgOptions& options = {});

// "mse" and "rmse": the mean squared difference between predictions and labels of the same shape, and its
// square root.
MetricPtr mse(const std::string& label, const MetricOptions& options = {});
MetricPtr rmse(const std::string& label, const MetricOptions& options = {});

// Options of mean().
struct MeanOptions {
  std::string weights = {};  // a column with a weight for each example; empty: all count 1
};

// The mean of `compute` over all examples. `compute` returns one value per example, or a single value, such
// as a mean loss, that counts for each example of the batch. If a value is NaN, the mean is NaN.
using Compute = std::function<torch::Tensor(const torch::Tensor& prediction, const Batch& batch)>;
MetricPtr mean(const std::string& name, Compute compute, const MeanOptions& options = {});

// Throws InvalidArgument if two metrics have the same name, since one value would replace the other.
void require_distinct_names(const List& list);

}  // namespace tutti::metrics
