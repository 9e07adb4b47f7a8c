#include "tutti/metrics/metrics.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/running_mean.h"

// Metrics of predictions of any shape: squared errors, and the mean of a function.
namespace tutti::metrics {
namespace {

class SquaredError final : public Metric {
 public:
  enum class Scale { Squared, Root };
  SquaredError(std::string label, Scale scale, const MetricOptions& options)
      : name_(!options.name.empty()  ? options.name
              : scale == Scale::Root ? "rmse"
                                     : "mse"),
        label_(std::move(label)),
        weights_(options.weights),
        scale_(scale) {}

  const std::string& name() const override { return name_; }
  std::vector<std::string> columns() const override { return {label_, weights_}; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const torch::Tensor labels = without_column(batch[label_]);
    const torch::Tensor values = without_column(prediction);
    if (values.sizes() != labels.sizes()) fail_shapes(name_, prediction, label_, labels);
    Checks checks;
    const torch::Tensor weights = weights_of(name_, weights_, batch);
    checks.weights(weights, weights_);
    torch::Tensor counted = labels.isnan().logical_not();
    if (weights.defined()) counted = counted & per_position(weights, counted).gt(0);
    checks.none(values.isnan() & counted, "predictions are NaN");
    checks.require(name_);
    torch::Tensor errors = (values.to(torch::kDouble) - labels.to(torch::kDouble)).square();
    errors = errors.masked_fill(counted.logical_not(), 0);
    if (errors.dim() > 1) errors = errors.flatten(1).sum(1);
    if (weights.defined()) {
      const torch::Tensor counts = counted.reshape({batch.size(), -1}).sum(1).to(torch::kDouble);
      mean_.add(errors * weights, counts * weights);
    } else {
      mean_.add(errors, counted.sum());
    }
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override {
    const auto mean = mean_.value();
    return mean && scale_ == Scale::Root ? std::sqrt(*mean) : mean;
  }
  std::string reason() const override { return reason_without_examples(weights_); }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<SquaredError>(label_, scale_, MetricOptions{weights_, name_});
  }

 private:
  std::string name_;
  std::string label_;
  std::string weights_;
  Scale scale_;
  RunningMean mean_;
};

class Mean final : public Metric {
 public:
  Mean(std::string name, Compute compute, const MeanOptions& options)
      : name_(std::move(name)), compute_(std::move(compute)), options_(options) {}

  const std::string& name() const override { return name_; }
  std::vector<std::string> columns() const override { return {options_.weights}; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const torch::Tensor values = compute_(prediction, batch).to(torch::kDouble);
    if (values.numel() != 1 && (values.dim() != 1 || values.size(0) != batch.size())) {
      fail(ErrorKind::InvalidArgument,
           "{}: the tensor has shape [{}]; expected one value, or one for each of the {} examples", name_,
           fmt::join(values.sizes(), ", "), batch.size());
    }
    const torch::Tensor weights = weights_of(name_, options_.weights, batch);
    if (!weights.defined()) {
      const double times = values.numel() == 1 ? static_cast<double>(batch.size()) : 1;
      mean_.add(values * times, batch.size());
      return;
    }
    Checks checks;
    checks.weights(weights, options_.weights);
    checks.require(name_);
    // A value of weight 0 may be NaN, and 0 times NaN is NaN.
    mean_.add((values.to(weights.device()) * weights).masked_fill(weights.eq(0), 0), weights);
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  std::string reason() const override {
    return options_.weights.empty()
               ? Metric::reason()
               : fmt::format("no example has a weight above 0 in '{}'", options_.weights);
  }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Mean>(name_, compute_, options_); }

 private:
  std::string name_;
  Compute compute_;
  MeanOptions options_;
  RunningMean mean_;
};

}  // namespace

MetricPtr mse(const std::string& label, const MetricOptions& options) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Squared, options);
}

MetricPtr rmse(const std::string& label, const MetricOptions& options) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Root, options);
}

MetricPtr mean(const std::string& name, Compute compute, const MeanOptions& options) {
  return std::make_shared<Mean>(name, std::move(compute), options);
}

void require_distinct_names(const List& list) {
  std::set<std::string_view> names;
  for (const MetricPtr& metric : list) {
    if (names.insert(metric->name()).second) continue;
    fail(ErrorKind::InvalidArgument,
         "two metrics are called '{0}'; give one of them another name, as in {0}(\"label\", {{.name = "
         "\"my_{0}\"}})",
         metric->name());
  }
}

}  // namespace tutti::metrics
