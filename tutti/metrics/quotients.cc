#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/ranking.h"
#include "tutti/metrics/running_mean.h"

// Metrics of quotients of two sums over the examples: precision, recall, calibration, log loss and normalised
// entropy.
namespace tutti::metrics {
namespace {

// The numbers that an example of weight 1 adds to the two sums.
struct Terms {
  double number;
  double count;
};

// A metric of examples with one score each.
class Quotient final : public Metric {
 public:
  using Rule = Terms (*)(const Example& example, double threshold);
  struct Kind {
    Rule rule;
    double threshold;
    const char* reason;  // why there is no value although examples were counted
  };

  Quotient(Expected expected, const Kind& kind) : expected_(std::move(expected)), kind_(kind) {}

  const std::string& name() const override { return expected_.metric; }
  std::vector<std::string> columns() const override { return columns_of(expected_); }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const double threshold = threshold_for(prediction, kind_.threshold);
    for (const Example& example : examples_of(expected_, prediction, batch)) {
      const Terms terms = kind_.rule(example, threshold);
      mean_.add(example.weight * terms.number, example.weight * terms.count);
      ++examples_;
    }
  }

  std::vector<double> counters() const override {
    std::vector<double> counters = mean_.counters();
    counters.push_back(static_cast<double>(examples_));
    return counters;
  }
  void merge(std::span<const double> counters) override {
    TUTTI_CHECK(!counters.empty(), "there are no counters; expected two sums and a count");
    mean_.merge(counters.first(counters.size() - 1));
    examples_ += static_cast<int64_t>(counters.back());
  }
  std::optional<double> value() const override { return mean_.value(); }
  std::string reason() const override {
    return examples_ > 0 ? kind_.reason : reason_without_examples(expected_.weights);
  }
  void reset() override {
    mean_ = {};
    examples_ = 0;
  }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Quotient>(expected_, kind_); }

 private:
  const Expected expected_;
  const Kind kind_;
  RunningMean mean_;
  int64_t examples_ = 0;
};

// The loss of the probability that was predicted for the actual class, for predictions of this type.
double log_loss_of(double probability, torch::ScalarType type) {
  const double least =
      type == torch::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return -same::log(std::clamp(probability, least, 1 - least));
}

double of_actual_class(const Example& example) {
  return example.label == 1 ? example.score : 1 - example.score;
}

class LogLoss final : public Metric {
 public:
  LogLoss(std::string label, const MetricOptions& options)
      : name_(options.name.empty() ? "log_loss" : options.name),
        label_(std::move(label)),
        weights_(options.weights) {}

  const std::string& name() const override { return name_; }
  std::vector<std::string> columns() const override { return {label_, weights_}; }

  // The logarithm is computed example by example, since logarithms of vectorised kernels may differ in the
  // last bit with the position in the batch.
  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const bool has_classes = prediction.dim() == 2 && prediction.size(1) > 1;
    for (const Example& example :
         has_classes ? of_classes(prediction, batch) : of_class_1(prediction, batch)) {
      const double loss = log_loss_of(of_actual_class(example), prediction.scalar_type());
      mean_.add(loss * example.weight, example.weight);
    }
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  std::string reason() const override { return reason_without_examples(weights_); }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<LogLoss>(label_, MetricOptions{weights_, name_});
  }

 private:
  std::vector<Example> of_class_1(const torch::Tensor& prediction, const Batch& batch) const {
    return examples_of(
        {.metric = name_, .label = label_, .weights = weights_, .scores = Expected::Scores::Probabilities},
        prediction, batch);
  }

  // Returns examples whose score is the probability of the actual class, and whose label is 1.
  std::vector<Example> of_classes(const torch::Tensor& prediction, const Batch& batch) const {
    Checks checks;
    const torch::Tensor weights = weights_of(name_, weights_, batch);
    checks.weights(weights, weights_);
    const torch::Tensor given = without_column(batch[label_]);
    if (prediction.size(0) != batch.size()) fail_shapes(name_, prediction, label_, given);
    const torch::Tensor classes = classes_of(label_, given, prediction, weights, checks).to(torch::kDouble);
    if (classes.dim() != 1) fail_shapes(name_, prediction, label_, given);
    torch::Tensor counted = classes.isnan().logical_not();
    if (weights.defined()) counted = counted & weights.gt(0);
    const double last = static_cast<double>(prediction.size(1) - 1);
    const torch::Tensor is_class = classes.ge(0) & classes.le(last) & classes.eq(classes.floor());
    checks.none(is_class.logical_not() & counted,
                fmt::format("labels in '{}' are no class numbers from 0 to {:.0f}", label_, last));
    checks.none((prediction.ge(0) & prediction.le(1)).logical_not().any(1) & counted,
                "rows of predictions have NaN or numbers outside [0, 1]; expected probabilities");
    checks.require(name_);
    const torch::Tensor of_class =
        prediction.to(torch::kDouble)
            .gather(1, classes.masked_fill(counted.logical_not(), 0).to(torch::kLong).unsqueeze(1))
            .squeeze(1);
    const torch::Tensor weight = weights.defined() ? weights : at::ones_like(of_class);
    const torch::Tensor rows = at::stack({of_class, weight}, 1).cpu().contiguous();
    const torch::Tensor counts = counted.cpu();
    const auto* numbers = static_cast<const double*>(rows.data_ptr());
    const auto* counts_at = static_cast<const bool*>(counts.data_ptr());
    std::vector<Example> examples;
    for (int64_t i = 0; i < rows.size(0); ++i) {
      if (counts_at[i])
        examples.push_back({.score = numbers[2 * i], .label = 1, .weight = numbers[2 * i + 1]});
    }
    return examples;
  }

  std::string name_;
  std::string label_;
  std::string weights_;
  RunningMean mean_;
};

class NormalizedEntropy final : public Metric {
 public:
  explicit NormalizedEntropy(Expected expected) : expected_(std::move(expected)) {}

  const std::string& name() const override { return expected_.metric; }
  std::vector<std::string> columns() const override { return columns_of(expected_); }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    for (const Example& example : examples_of(expected_, prediction, batch)) {
      const double loss = log_loss_of(of_actual_class(example), prediction.scalar_type());
      loss_.add(loss * example.weight, example.weight);
      base_rate_.add(example.label * example.weight, example.weight);
      ++examples_[example.label == 1 ? 1 : 0];
    }
  }

  std::vector<double> counters() const override {
    const std::vector<double> loss = loss_.counters();
    const std::vector<double> base_rate = base_rate_.counters();
    std::vector<double> counters = {static_cast<double>(examples_[0]), static_cast<double>(examples_[1]),
                                    static_cast<double>(loss.size())};
    counters.insert(counters.end(), loss.begin(), loss.end());
    counters.insert(counters.end(), base_rate.begin(), base_rate.end());
    return counters;
  }
  void merge(std::span<const double> counters) override {
    constexpr size_t kHead = 3;
    TUTTI_CHECK(counters.size() >= kHead, "{} counters; expected more", counters.size());
    const auto size = static_cast<size_t>(counters[2]);
    const std::span<const double> sums = counters.subspan(kHead);
    TUTTI_CHECK(size <= sums.size(), "{} counters of {}", sums.size(), size);
    for (size_t i = 0; i < examples_.size(); ++i) examples_[i] += static_cast<uint64_t>(counters[i]);
    loss_.merge(sums.first(size));
    base_rate_.merge(sums.subspan(size));
  }

  std::optional<double> value() const override {
    const auto loss = loss_.value();
    const auto rate = base_rate_.value();
    // The rate may also be 0 or 1 because all weights of one class are negligible.
    if (!loss || *rate == 0 || *rate == 1) return std::nullopt;
    return *loss / -(*rate * same::log(*rate) + (1 - *rate) * same::log1p(-*rate));
  }
  std::string reason() const override {
    return reason_without_class(examples_[1], examples_[0], expected_.weights);
  }
  void reset() override {
    loss_ = {};
    base_rate_ = {};
    examples_ = {};
  }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<NormalizedEntropy>(expected_); }

 private:
  const Expected expected_;
  RunningMean loss_;
  RunningMean base_rate_;               // the share of class 1
  std::array<uint64_t, 2> examples_{};  // by class
};

Expected expected_of(const std::string& label, const std::string& weights, const std::string& name,
                     const char* own_name) {
  return {.metric = name.empty() ? own_name : name, .label = label, .weights = weights};
}

}  // namespace

MetricPtr precision(const std::string& label, const ThresholdOptions& options) {
  const auto rule = [](const Example& example, double threshold) -> Terms {
    const double answer = example.score > threshold ? 1 : 0;
    return {answer * example.label, answer};
  };
  return std::make_shared<Quotient>(
      expected_of(label, options.weights, options.name, "precision"),
      Quotient::Kind{rule, options.threshold, "no example is predicted to be of class 1"});
}

MetricPtr recall(const std::string& label, const ThresholdOptions& options) {
  const auto rule = [](const Example& example, double threshold) -> Terms {
    return {example.score > threshold ? example.label : 0, example.label};
  };
  return std::make_shared<Quotient>(expected_of(label, options.weights, options.name, "recall"),
                                    Quotient::Kind{rule, options.threshold, "no example is of class 1"});
}

MetricPtr calibration(const std::string& label, const MetricOptions& options) {
  Expected expected = expected_of(label, options.weights, options.name, "calibration");
  expected.scores = Expected::Scores::Probabilities;
  const auto rule = [](const Example& example, double) -> Terms { return {example.score, example.label}; };
  return std::make_shared<Quotient>(std::move(expected), Quotient::Kind{rule, 0, "no example is of class 1"});
}

MetricPtr normalized_entropy(const std::string& label, const MetricOptions& options) {
  Expected expected = expected_of(label, options.weights, options.name, "normalized_entropy");
  expected.scores = Expected::Scores::Probabilities;
  return std::make_shared<NormalizedEntropy>(std::move(expected));
}

MetricPtr log_loss(const std::string& label, const MetricOptions& options) {
  return std::make_shared<LogLoss>(label, options);
}

}  // namespace tutti::metrics
