#include "tutti/metrics/metrics.h"

#include <array>
#include <cmath>

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
  fail(ErrorKind::InvalidArgument, "{}: predictions of shape [{}] do not go with '{}' of shape [{}]", metric,
       fmt::join(prediction.sizes(), ", "), label, fmt::join(labels.sizes(), ", "));
}

// One column more or less makes no difference between predictions and labels: (n, 1) is (n).
torch::Tensor without_column(const torch::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 1 ? tensor.squeeze(1) : tensor;
}

class Accuracy final : public Metric {
 public:
  Accuracy(std::string label, const AccuracyOptions& options) : label_(std::move(label)), options_(options) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    if (batch.size() == 0) return;
    const torch::Tensor labels = without_column(batch[label_]);
    const torch::Tensor single = without_column(prediction);
    const torch::Tensor answers = single.dim() == 1 ? single > options_.threshold : single.argmax(1);
    if (answers.sizes() != labels.sizes()) fail_shapes(name_, prediction, label_, labels);
    // What is missing equals nothing.
    mean_.add(answers.to(labels.scalar_type()).eq(labels).sum(), labels.isnan().logical_not().sum());
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override { return mean_.value(); }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Accuracy>(label_, options_); }

 private:
  std::string name_ = "accuracy";
  std::string label_;
  AccuracyOptions options_;
  RunningMean mean_;
};

class SquaredError final : public Metric {
 public:
  enum class Scale { Squared, Root };
  SquaredError(std::string label, Scale scale)
      : name_(scale == Scale::Root ? "rmse" : "mse"), label_(std::move(label)), scale_(scale) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const torch::NoGradGuard no_gradients;
    const torch::Tensor labels = without_column(batch[label_]);
    const torch::Tensor values = without_column(prediction);
    if (values.sizes() != labels.sizes()) fail_shapes(name_, prediction, label_, labels);
    const torch::Tensor known = labels.isnan().logical_not();
    const torch::Tensor errors = (values.to(torch::kDouble) - labels.to(torch::kDouble)).square();
    mean_.add(errors.masked_fill(known.logical_not(), 0).sum(), known.sum());
  }

  std::vector<double> counters() const override { return mean_.counters(); }
  void merge(std::span<const double> counters) override { mean_.merge(counters); }
  std::optional<double> value() const override {
    const auto mean = mean_.value();
    return mean && scale_ == Scale::Root ? std::sqrt(*mean) : mean;
  }
  void reset() override { mean_ = {}; }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<SquaredError>(label_, scale_); }

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
           "{}: a tensor of shape [{}] is neither one value nor one for each of {} examples", name_,
           fmt::join(values.sizes(), ", "), batch.size());
    }
    const double times = values.numel() == 1 ? static_cast<double>(batch.size()) : 1;
    mean_.add(values.sum() * times, batch.size());
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

MetricPtr mse(const std::string& label) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Squared);
}

MetricPtr rmse(const std::string& label) {
  return std::make_shared<SquaredError>(label, SquaredError::Scale::Root);
}

MetricPtr mean(const std::string& name, Compute compute) {
  return std::make_shared<Mean>(name, std::move(compute));
}

}  // namespace tutti::metrics
