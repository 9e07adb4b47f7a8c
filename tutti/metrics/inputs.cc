#include "tutti/metrics/inputs.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::metrics {
namespace {

// Contiguous numbers on the CPU, as doubles.
class Numbers {
 public:
  explicit Numbers(const torch::Tensor& tensor)
      : tensor_(tensor.detach().to(torch::kCPU, torch::kDouble).contiguous()),
        numbers_(static_cast<const double*>(tensor_.data_ptr())) {}
  double operator[](int64_t i) const { return numbers_[i]; }

 private:
  const torch::Tensor tensor_;
  const double* const numbers_;
};

// Counts the examples with one kind of fault, and remembers the first.
struct Fault {
  int64_t count = 0;
  int64_t example = 0;
  double number = 0;

  void add(int64_t at, double bad) {
    if (count++ > 0) return;
    example = at;
    number = bad;
  }
  void require_none(const Expected& expected, const Batch& batch, const std::string& text) const {
    if (count == 0) return;
    fail(ErrorKind::InvalidArgument, "{}: {} of {} {} (the first is {}, in {})", expected.metric, count,
         batch.size(), text, number, batch.describe(example));
  }
};

// Group numbers as 64-bit integers, which a double could not represent.
torch::Tensor groups_of(const Expected& expected, const Batch& batch) {
  const torch::Tensor given = column_of(expected.metric, expected.group, batch).detach().to(torch::kCPU);
  if (!given.is_floating_point()) return given.to(torch::kLong).contiguous();
  // Beyond these, neighbouring whole numbers have become the same.
  const double limit = given.scalar_type() == torch::kDouble  ? 9007199254740992.0
                       : given.scalar_type() == torch::kFloat ? 16777216.0
                                                              : 256.0;
  const torch::Tensor numbers = given.to(torch::kDouble);
  if (!(numbers.eq(numbers.round()) & numbers.abs().le(limit)).all().item<bool>())
    fail(ErrorKind::InvalidArgument,
         "{}: the groups in '{}' have to be whole numbers, of at most {:.0f} in a column of this floating "
         "type: "
         "use int64",
         expected.metric, expected.group, limit);
  return numbers.to(torch::kLong).contiguous();
}

}  // namespace

bool is_before(const Example& a, const Example& b) {
  return std::tie(a.group, a.score, a.label, a.weight) < std::tie(b.group, b.score, b.label, b.weight);
}

void require_columns(const List& list, const std::vector<std::string>& there) {
  for (const MetricPtr& metric : list) {
    for (const std::string& column : metric->columns()) {
      if (column.empty() || std::find(there.begin(), there.end(), column) != there.end()) continue;
      fail(ErrorKind::InvalidArgument, "{}: the examples have no column '{}', only {}{}", metric->name(),
           column, fmt::join(there, ", "), did_you_mean(column, there));
    }
  }
}

std::vector<Example> examples_of(const Expected& expected, const torch::Tensor& prediction,
                                 const Batch& batch) {
  const int64_t size = batch.size();
  std::vector<Example> examples;
  if (size == 0) return examples;
  const Numbers scores(scores_of(expected, prediction, size));
  const Numbers labels(column_of(expected.metric, expected.label, batch));
  const torch::Tensor given_weights = weights_of(expected.metric, expected.weights, batch);
  const Numbers weights(given_weights.defined() ? given_weights : at::ones({1}, at::kDouble).expand({size}));
  const torch::Tensor given_groups =
      expected.group.empty() ? at::zeros({size}, at::kLong) : groups_of(expected, batch);
  const auto* groups = static_cast<const int64_t*>(given_groups.data_ptr());
  const bool classes = expected.labels == Expected::Labels::Classes;
  const bool probabilities = expected.scores == Expected::Scores::Probabilities;
  Fault bad_weight;
  Fault bad_label;
  Fault no_score;
  Fault outside;
  examples.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const Example one{groups[i], scores[i] + 0.0, labels[i], weights[i]};
    if (!(one.weight >= 0) || std::isinf(one.weight)) bad_weight.add(i, one.weight);
    if (std::isnan(one.label) || !(one.weight > 0)) continue;
    const bool is_good =
        classes ? one.label == 0 || one.label == 1 : one.label >= 0 && one.label <= expected.most_relevant;
    if (!is_good) bad_label.add(i, one.label);
    if (std::isnan(one.score))
      no_score.add(i, one.score);
    else if (probabilities && !(one.score >= 0 && one.score <= 1))
      outside.add(i, one.score);
    examples.push_back(one);
  }
  bad_weight.require_none(expected, batch,
                          fmt::format("weights in '{}' are negative or not finite", expected.weights));
  bad_label.require_none(
      expected, batch,
      fmt::format("labels in '{}' are not {}", expected.label,
                  classes ? "0, 1 or missing (NaN)"
                          : fmt::format("relevances: numbers from 0 to {:g}", expected.most_relevant)));
  no_score.require_none(expected, batch, "predictions are NaN");
  outside.require_none(expected, batch, "predictions are no probabilities in [0, 1]");
  return examples;
}

std::string reason_without_examples(const std::string& weights) {
  return weights.empty() ? "no example has a label"
                         : fmt::format("no example has a label and a weight above 0 in '{}'", weights);
}

torch::Tensor without_column(const torch::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 1 ? tensor.squeeze(1) : tensor;
}

void fail_shapes(const std::string& metric, const torch::Tensor& prediction, const std::string& label,
                 const torch::Tensor& labels) {
  fail(ErrorKind::InvalidArgument, "{}: predictions of shape [{}] do not match '{}' of shape [{}]", metric,
       fmt::join(prediction.sizes(), ", "), label, fmt::join(labels.sizes(), ", "));
}

torch::Tensor scores_of(const Expected& expected, const torch::Tensor& prediction, int64_t examples) {
  torch::Tensor scores = prediction.detach().to(torch::kCPU);
  const bool probabilities = expected.scores == Expected::Scores::Probabilities;
  if (!probabilities && scores.dim() == 2 && scores.size(1) == 2) {
    scores = scores.to(torch::kDouble);
    scores = scores.select(1, 1) - scores.select(1, 0);
  }
  if (scores.numel() != examples || scores.dim() == 0 || scores.size(0) != examples) {
    fail(ErrorKind::InvalidArgument,
         "{}: the predictions for {} examples have shape [{}]; expected one {} for each example",
         expected.metric, examples, fmt::join(prediction.sizes(), ", "),
         probabilities ? "probability" : "score");
  }
  const bool is_short = scores.is_floating_point() && scores.scalar_type() != torch::kDouble;
  return scores.to(is_short ? torch::kFloat : torch::kDouble).contiguous();
}

double threshold_for(const torch::Tensor& prediction, double threshold) {
  if (!prediction.is_floating_point()) return threshold;
  return at::scalar_tensor(threshold, at::kDouble)
      .to(prediction.scalar_type())
      .to(at::kDouble)
      .item<double>();
}

torch::Tensor column_of(const std::string& metric, const std::string& column, const Batch& batch) {
  const torch::Tensor& numbers = batch[column];
  if (numbers.numel() != batch.size())
    fail(ErrorKind::InvalidArgument,
         "{}: '{}' has shape [{}]; expected one number for each of the {} examples", metric, column,
         fmt::join(numbers.sizes(), ", "), batch.size());
  return numbers;
}

torch::Tensor weights_of(const std::string& metric, const std::string& column, const Batch& batch) {
  if (column.empty()) return {};
  return column_of(metric, column, batch).detach().to(torch::kDouble).flatten();
}

torch::Tensor per_position(const torch::Tensor& weights, const torch::Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes.at(0) = weights.numel();
  return weights.reshape(sizes).expand_as(like);
}

torch::Tensor classes_of(const std::string& label, const torch::Tensor& labels,
                         const torch::Tensor& prediction, const torch::Tensor& weights, Checks& checks) {
  if (prediction.dim() < 2 || labels.sizes() != prediction.sizes()) return labels;
  torch::Tensor missing = labels.isnan().any(1);
  if (weights.defined()) missing = missing | per_position(weights, missing).eq(0);
  const torch::Tensor ones = labels.eq(1).sum(1).eq(1) & labels.eq(0).sum(1).eq(labels.size(1) - 1);
  checks.none((ones | missing).logical_not(),
              fmt::format("rows of '{}', which has the shape of the predictions, [{}], are not one-hot: "
                          "expected a single 1 in each row, and 0 elsewhere",
                          label, fmt::join(labels.sizes(), ", ")));
  return labels.to(torch::kDouble).argmax(1).to(torch::kDouble).masked_fill(missing, std::nan(""));
}

void Checks::none(const torch::Tensor& bad, std::string text) {
  counts_.push_back(bad.sum().reshape({1}));
  texts_.push_back(std::move(text));
}

void Checks::weights(const torch::Tensor& weights, const std::string& column) {
  if (weights.defined())
    none((weights.ge(0) & weights.isfinite()).logical_not(),
         fmt::format("weights in '{}' are negative or not finite", column));
}

void Checks::require(const std::string& metric) {
  if (counts_.empty()) return;
  const torch::Tensor counts = at::cat(counts_).cpu();
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto count = counts[static_cast<int64_t>(i)].item<int64_t>();
    if (count > 0) fail(ErrorKind::InvalidArgument, "{}: {} {}", metric, count, texts_[i]);
  }
}

}  // namespace tutti::metrics
