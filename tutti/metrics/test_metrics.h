#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <torch/types.h>

#include "tutti/metrics/metrics.h"

namespace tutti::metrics {

// For tests: examples with probabilities, of which many are equal, and all columns that metrics can use:
// "label" (0 or 1), "relevance" (0 to 4), "weight" (some are 0) and "group".
struct TestExamples {
  torch::Tensor prediction;
  Batch batch;

  int64_t size() const { return batch.size(); }
  TestExamples at(const torch::Tensor& rows) const {
    Batch::Tensors tensors;
    for (const auto& [name, tensor] : batch.tensors())
      tensors.emplace_back(name, tensor.index_select(0, rows));
    return {prediction.index_select(0, rows), Batch(tensors)};
  }
  void update(Metric& metric) const { metric.update(prediction, batch); }
};

inline TestExamples drawn_examples(uint64_t seed, int64_t size, int64_t groups = 7) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const torch::TensorOptions doubles = torch::kDouble;
  TestExamples drawn{torch::empty({size}, doubles), {}};
  const torch::Tensor label = torch::empty({size}, doubles);
  const torch::Tensor relevance = torch::empty({size}, doubles);
  const torch::Tensor weight = torch::empty({size}, doubles);
  const torch::Tensor group = torch::empty({size}, torch::kLong);
  for (int64_t i = 0; i < size; ++i) {
    // A third of the probabilities are multiples of 1/20.
    const double p = below(3) == 0 ? 0.05 * static_cast<double>(below(21))
                                   : static_cast<double>(below(1000003)) / 1000003.0;
    drawn.prediction[i] = p;
    label[i] = 0.7 * p + 0.15 > static_cast<double>(below(1000)) / 1000 ? 1 : 0;
    relevance[i] = std::min<int64_t>(4, below(3) + static_cast<int64_t>(3 * p));
    weight[i] = below(6) == 0 ? 0 : 0.1 * static_cast<double>(1 + below(30));
    group[i] = (int64_t{1} << 60) + 3 * below(groups);  // a double could not tell them apart
  }
  drawn.batch = Batch({{"label", label}, {"relevance", relevance}, {"weight", weight}, {"group", group}});
  return drawn;
}

inline torch::Tensor as_rows(const std::vector<int64_t>& rows) { return torch::tensor(rows, torch::kLong); }

// Counts the examples as `parts` workers would: in random order, in batches of random sizes, of which each
// worker gets any number. Merges the workers in random order.
inline void count_in_parts(const TestExamples& examples, const List& list, int parts, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> rows(static_cast<size_t>(examples.size()));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  std::vector<List> workers(static_cast<size_t>(parts));
  for (List& worker : workers) {
    for (const MetricPtr& metric : list) worker.emplace_back(metric->clone());
  }
  for (size_t begin = 0; begin < rows.size();) {
    const size_t end = std::min(rows.size(), begin + 1 + random() % 97);
    const TestExamples batch = examples.at(
        as_rows({rows.begin() + static_cast<ptrdiff_t>(begin), rows.begin() + static_cast<ptrdiff_t>(end)}));
    for (const MetricPtr& metric : workers[random() % workers.size()]) batch.update(*metric);
    begin = end;
  }
  std::shuffle(workers.begin(), workers.end(), random);
  for (const MetricPtr& metric : list) metric->reset();
  for (const List& worker : workers) merge(list, counters_of(worker));
}

// All kinds of metrics, for the columns of TestExamples, with different names.
inline List all_metrics(const std::string& weights) {
  const auto prediction = [](const torch::Tensor& prediction, const Batch&) { return prediction; };
  List list = {accuracy("label", {.weights = weights, .threshold = 0.5}),
               precision("label", {.weights = weights, .threshold = 0.5}),
               recall("label", {.weights = weights, .threshold = 0.5}),
               auc("label", {.weights = weights}),
               average_precision("label", {.weights = weights}),
               log_loss("label", {.weights = weights}),
               normalized_entropy("label", {.weights = weights}),
               calibration("label", {.weights = weights}),
               group_auc("label", "group", {.weights = weights}),
               group_auc("label", "group", {.weights = weights, .by = By::Groups, .name = "by_groups"}),
               ndcg("relevance", "group", {.weights = weights}),
               ndcg("relevance", "group", {.weights = weights, .at = 3, .gain = Gain::Exponential}),
               mse("label", {.weights = weights}),
               rmse("label", {.weights = weights}),
               mean("mean", prediction, {.weights = weights})};
  for (const Curve curve : {Curve::ROC, Curve::PR}) {
    for (const Summation summation :
         {Summation::Trapezoidal, Summation::CarefulInterpolation, Summation::Minoring, Summation::Majoring})
      list.push_back(auc("label", {.weights = weights,
                                   .num_thresholds = 21,
                                   .curve = curve,
                                   .summation = summation,
                                   .name = std::string(curve == Curve::ROC ? "roc" : "pr") +
                                           std::to_string(static_cast<int>(summation))}));
    list.push_back(auc("label", {.weights = weights,
                                 .thresholds = {0.9, 0.1, 0.35, 0.5},
                                 .curve = curve,
                                 .name = curve == Curve::ROC ? "roc_at" : "pr_at"}));
  }
  return list;
}

}  // namespace tutti::metrics
