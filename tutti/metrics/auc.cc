#include <utility>

#include "tutti/base/error.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/score_counts.h"
#include "tutti/metrics/threshold_auc.h"

// The metrics of all examples ranked together: the exact area under the ROC curve, and average precision.
namespace tutti::metrics {
namespace {

enum class Area { RocCurve, AveragePrecision };

// Without weights, counts the examples per distinct score. With weights, keeps all examples.
class Ranked final : public Metric {
 public:
  Ranked(const Expected& expected, Area area) : expected_(expected), area_(area), weighted_(expected) {}

  const std::string& name() const override { return expected_.metric; }
  std::vector<std::string> columns() const override { return columns_of(expected_); }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    if (batch.size() == 0) return;
    if (is_weighted()) return weighted_.add(examples_of(expected_, prediction, batch));
    const bool are_good = counts_.add(
        scores_of(expected_, prediction, batch.size()),
        column_of(expected_.metric, expected_.label, batch).detach().to(torch::kCPU).flatten().contiguous());
    if (!are_good) examples_of(expected_, prediction, batch);  // throws the error, which names the example
  }

  std::vector<double> counters() const override {
    return is_weighted() ? weighted_.counters() : counts_.counters();
  }
  void merge(std::span<const double> counters) override {
    if (is_weighted())
      weighted_.merge(counters);
    else
      counts_.merge(counters);
  }

  std::optional<double> value() const override {
    if (area_ == Area::RocCurve && !is_weighted()) return counts_.auc();
    return area_ == Area::RocCurve ? auc_of(bins()) : average_precision_of(bins());
  }
  std::string reason() const override {
    if (!is_weighted()) return reason_without_class(counts_.positives(), counts_.negatives(), "");
    uint64_t positives = 0;
    for (const Example& example : weighted_.sorted()) positives += example.label == 1 ? 1 : 0;
    return reason_without_class(positives, weighted_.sorted().size() - positives, expected_.weights);
  }

  std::vector<CurvePoint> curve() const override { return curve_of(bins()); }
  bool has_uneven_thresholds() const override { return true; }

  void reset() override {
    counts_.clear();
    weighted_.clear();
  }
  std::unique_ptr<Metric> clone() const override { return std::make_unique<Ranked>(expected_, area_); }

 private:
  bool is_weighted() const { return !expected_.weights.empty(); }
  std::vector<Bin> bins() const { return is_weighted() ? bins_of(weighted_.sorted()) : counts_.bins(); }

  const Expected expected_;
  const Area area_;
  ScoreCounts counts_;    // without weights
  ExampleList weighted_;  // with weights
};

}  // namespace

MetricPtr auc(const std::string& label, const AucOptions& options) {
  if (options.num_thresholds != 0 || !options.thresholds.empty()) return threshold_auc(label, options);
  if (options.curve != Curve::ROC || options.summation != Summation::Trapezoidal)
    fail(ErrorKind::InvalidArgument,
         "auc of '{}': .curve and .summation need .num_thresholds, such as 200, or .thresholds; the exact "
         "area "
         "under the PR curve is average_precision()",
         label);
  const std::string name = options.name.empty() ? "auc" : options.name;
  return std::make_shared<Ranked>(Expected{.metric = name, .label = label, .weights = options.weights},
                                  Area::RocCurve);
}

MetricPtr average_precision(const std::string& label, const MetricOptions& options) {
  const std::string name = options.name.empty() ? "average_precision" : options.name;
  return std::make_shared<Ranked>(Expected{.metric = name, .label = label, .weights = options.weights},
                                  Area::AveragePrecision);
}

}  // namespace tutti::metrics
