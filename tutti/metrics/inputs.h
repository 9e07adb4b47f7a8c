#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/data/batch.h"
#include "tutti/metrics/metric.h"

// How metrics read and check the predictions, labels, weights and groups of a batch.
namespace tutti::metrics {

// One example that counts.
struct Example {
  int64_t group = 0;
  double score = 0;  // never -0, so that equal scores have the same bits
  double label = 0;
  double weight = 1;
};

// Returns true if `a` is before `b` in an order in which only examples with the same four numbers are equal.
bool is_before(const Example& a, const Example& b);

// The columns and the values that a metric of one score per example expects.
struct Expected {
  enum class Scores { Any, Probabilities };
  enum class Labels { Classes, Relevances };

  std::string metric;  // its name, for errors
  std::string label;
  std::string weights = {};  // "": all are 1
  std::string group = {};    // "": all examples are in group 0
  Scores scores = Scores::Any;
  Labels labels = Labels::Classes;
  double most_relevant = 1e100;  // greater relevances are errors
};

inline std::vector<std::string> columns_of(const Expected& expected) {
  return {expected.label, expected.weights, expected.group};
}
// Throws an InvalidArgument that lists `there`, the names of a batch's columns, if a metric reads a column
// that is not among them. Does not cover the columns that the function of a mean() reads.
void require_columns(const List& list, const std::vector<std::string>& there);

// Returns the examples that have a label and a weight above 0, in the order of the batch. Copies tensors of a
// GPU. Throws InvalidArgument if shapes or values are not as expected.
std::vector<Example> examples_of(const Expected& expected, const torch::Tensor& prediction,
                                 const Batch& batch);

// Returns the reason why a metric has counted no examples.
std::string reason_without_examples(const std::string& weights);

// Returns (n) for (n, 1), since both stand for one number per example.
torch::Tensor without_column(const torch::Tensor& tensor);

[[noreturn]] void fail_shapes(const std::string& metric, const torch::Tensor& prediction,
                              const std::string& label, const torch::Tensor& labels);

// Returns one score per example on the CPU, contiguous, float32 if the predictions have that type or a
// shorter one, else float64.
torch::Tensor scores_of(const Expected& expected, const torch::Tensor& prediction, int64_t examples);
// Returns a threshold as a number of the type of floating predictions, so that one that looks equal is equal.
double threshold_for(const torch::Tensor& prediction, double threshold);
// Returns one number per example of this column, on its device.
torch::Tensor column_of(const std::string& metric, const std::string& column, const Batch& batch);

// Collects the errors of a batch, and waits for the device only once.
class Checks {
 public:
  // `text` follows the number of the elements of `bad` that are true: "predictions are NaN".
  void none(const torch::Tensor& bad, std::string text);
  // Checks the weights of weights_of().
  void weights(const torch::Tensor& weights, const std::string& column);
  // Throws InvalidArgument if any check has failed.
  void require(const std::string& metric);

 private:
  std::vector<torch::Tensor> counts_;
  std::vector<std::string> texts_;
};

// Returns the weights (n) in double precision, on the device of the column, unchecked; undefined for no
// column.
torch::Tensor weights_of(const std::string& metric, const std::string& column, const Batch& batch);

// Returns the weights (n) for each position of a tensor (n, ...).
torch::Tensor per_position(const torch::Tensor& weights, const torch::Tensor& like);

// Returns the class numbers of labels that are class numbers or, if they have the shape of the predictions,
// one-hot; NaN for a one-hot row that contains any NaN or has no weight.
torch::Tensor classes_of(const std::string& label, const torch::Tensor& labels,
                         const torch::Tensor& prediction, const torch::Tensor& weights, Checks& checks);

}  // namespace tutti::metrics
