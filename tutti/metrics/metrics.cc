#include "tutti/metrics/metrics.h"

#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::metrics {
namespace {

[[noreturn]] void fail_shapes(const std::string& metric, const torch::Tensor& prediction,
                              const std::string& label, const torch::Tensor& labels) {
  fail(ErrorKind::InvalidArgument, "{}: predictions of shape [{}] do not match '{}' of shape [{}]", metric,
       fmt::join(prediction.sizes(), ", "), label, fmt::join(labels.sizes(), ", "));
}

// (n, 1) and (n) are treated as the same shape of predictions and labels.
torch::Tensor without_column(const torch::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 1 ? tensor.squeeze(1) : tensor;
}

class Accuracy final : public Metric {
 public:
  Accuracy(std::string label, const AccuracyOptions& options)
      : name_(options.name.empty() ? "accuracy" : options.name),
        label_(std::move(label)),
        options_(options) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const torch::Tensor single = without_column(prediction);
    const torch::Tensor labels = classes_of(without_column(batch[label_]), single);
    const torch::Tensor answers = single.dim() == 1 ? single > options_.threshold : single.argmax(1);
    if (answers.sizes() != labels.sizes()) fail_shapes(name_, prediction, label_, labels);
    // A missing label is NaN, which equals nothing. Compares in double precision, since a type for few
    // classes might not represent all answers.
    mean_.add(answers.to(torch::kDouble).eq(labels.to(torch::kDouble)).sum(),
              labels.isnan().logical_not().sum());
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Accuracy>(label_, options_); }

 private:
  // Returns the class numbers of one-hot labels; NaN for a row that contains any NaN.
  torch::Tensor classes_of(const torch::Tensor& labels, const torch::Tensor& prediction) const {
    if (prediction.dim() < 2 || labels.sizes() != prediction.sizes()) return labels;
    const torch::Tensor missing = labels.isnan().any(1);
    const torch::Tensor ones = labels.eq(1).sum(1).eq(1) & labels.eq(0).sum(1).eq(labels.size(1) - 1);
    if (!(ones | missing).all().item<bool>()) {
      fail(ErrorKind::InvalidArgument,
           "{}: '{}' has the shape of the predictions, [{}], but is not one-hot: expected a single 1 in each "
           "row, and 0 elsewhere",
           name_, label_, fmt::join(labels.sizes(), ", "));
    }
    return labels.to(torch::kDouble).argmax(1).to(torch::kDouble).masked_fill(missing, std::nan(""));
  }

  std::string name_;
  std::string label_;
  AccuracyOptions options_;
  RunningMean mean_;
};

class SquaredError final : public Metric {
 public:
  enum class Scale { Squared, Root };
  SquaredError(std::string label, Scale scale, const MetricOptions& options)
      : name_(!options.name.empty()  ? options.name
              : scale == Scale::Root ? "rmse"
                                     : "mse"),
        label_(std::move(label)),
        scale_(scale) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    const torch::Tensor labels = without_column(batch[label_]);
    const torch::Tensor values = without_column(prediction);
    if (values.sizes() != labels.sizes()) fail_shapes(name_, prediction, label_, labels);
    const torch::Tensor known = labels.isnan().logical_not();
    const torch::Tensor errors = (values.to(torch::kDouble) - labels.to(torch::kDouble)).square();
    const torch::Tensor counted = errors.masked_fill(known.logical_not(), 0);
    mean_.add(counted.dim() > 1 ? counted.flatten(1).sum(1) : counted, known.sum());
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override {
    const auto mean = mean_.value();
    return mean && scale_ == Scale::Root ? std::sqrt(*mean) : mean;
  }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<SquaredError>(label_, scale_, MetricOptions{name_});
  }

 private:
  std::string name_;
  std::string label_;
  Scale scale_;
  RunningMean mean_;
};

class Mean final : public Metric {
 public:
  Mean(std::string name, Compute compute) : name_(std::move(name)), compute_(std::move(compute)) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const torch::Tensor values = compute_(prediction, batch).to(torch::kDouble);
    if (values.numel() != 1 && (values.dim() != 1 || values.size(0) != batch.size())) {
      fail(ErrorKind::InvalidArgument,
           "{}: the tensor has shape [{}]; expected one value, or one for each of the {} examples", name_,
           fmt::join(values.sizes(), ", "), batch.size());
    }
    const double times = values.numel() == 1 ? static_cast<double>(batch.size()) : 1;
    mean_.add(values * times, batch.size());
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Mean>(name_, compute_); }

 private:
  std::string name_;
  Compute compute_;
  RunningMean mean_;
};

}  // namespace

MetricPtr accuracy(const std::string& label, const AccuracyOptions& options) {
  return std::make_shared<Accuracy>(label, options);
}

MetricPtr mse(const std::string& label, const MetricOptions& options) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Squared, options);
}

MetricPtr rmse(const std::string& label, const MetricOptions& options) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Root, options);
}

MetricPtr mean(const std::string& name, Compute compute) {
  return std::make_shared<Mean>(name, std::move(compute));
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
