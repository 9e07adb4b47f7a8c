#include "tutti/metrics/threshold_auc.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/ranking.h"
#include "tutti/metrics/running_mean.h"

// The area under a curve through one point per threshold. The thresholds are evenly spaced or given.
namespace tutti::metrics {
namespace {

constexpr double kOutside = 1e-7;
constexpr int64_t kMostThresholds = 1 << 20;

// Returns the thresholds in ascending order, including the two outside [0, 1].
std::vector<double> thresholds_of(const AucOptions& options) {
  std::vector<double> thresholds = options.thresholds;
  std::sort(thresholds.begin(), thresholds.end());
  for (int64_t i = 1; i < options.num_thresholds - 1; ++i)
    thresholds.push_back(static_cast<double>(i) / static_cast<double>(options.num_thresholds - 1));
  thresholds.insert(thresholds.begin(), -kOutside);
  thresholds.push_back(1 + kOutside);
  return thresholds;
}

// The sums of the weights of one class. Bucket i has the probabilities above threshold i, up to threshold
// i + 1.
struct Buckets {
  std::vector<ExactSum> weights;
  uint64_t examples = 0;

  // Returns for each threshold the sum of the weights above it.
  std::vector<double> above() const {
    std::vector<double> sums(weights.size() + 1);
    ExactSum sum;
    for (size_t i = weights.size(); i-- > 0;) {
      sum.add(weights[i]);
      sums[i] = sum.value();
    }
    return sums;
  }
  // Returns for each threshold the sum of the weights that are not above it.
  std::vector<double> below() const {
    std::vector<double> sums(weights.size() + 1);
    ExactSum sum;
    for (size_t i = 0; i < weights.size(); ++i) {
      sum.add(weights[i]);
      sums[i + 1] = sum.value();
    }
    return sums;
  }
};

double area_by_ordinates(const CurvePoint& a, const CurvePoint& b, Curve curve, Summation summation) {
  const double width =
      curve == Curve::ROC ? a.false_positive_rate() - b.false_positive_rate() : a.recall() - b.recall();
  const double first = curve == Curve::ROC ? a.recall() : a.precision();
  const double second = curve == Curve::ROC ? b.recall() : b.precision();
  if (summation == Summation::Minoring) return width * std::min(first, second);
  if (summation == Summation::Majoring) return width * std::max(first, second);
  return width * (first + second) / 2;
}

// Integrates the precision from b to a, where the true positives are a linear function of all predicted
// positives, TP = slope * P + intercept (Davis and Goadrich).
double area_by_positives(const CurvePoint& a, const CurvePoint& b) {
  const double predicted_a = a.true_positives + a.false_positives;
  const double predicted_b = b.true_positives + b.false_positives;
  const double gained = a.true_positives - b.true_positives;
  if (predicted_a <= predicted_b) return 0;
  const double slope = gained / (predicted_a - predicted_b);
  const double intercept = b.true_positives - slope * predicted_b;
  // Without predictions at b the line goes through the origin, so that the precision is constant.
  const double logarithm = predicted_b > 0 ? same::log(predicted_a / predicted_b) : 0;
  return slope * (gained + intercept * logarithm) / (b.true_positives + b.false_negatives);
}

class ThresholdAuc final : public Metric {
 public:
  ThresholdAuc(Expected expected, const AucOptions& options)
      : expected_(std::move(expected)),
        options_(options),
        thresholds_(thresholds_of(options)),
        thresholds_in_float_(thresholds_.begin(), thresholds_.end()) {
    reset();
  }

  const std::string& name() const override { return expected_.metric; }
  std::vector<std::string> columns() const override { return columns_of(expected_); }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    const std::vector<Example> examples = examples_of(expected_, prediction, batch);
    // As in TensorFlow, a probability in float32 is compared with the threshold in float32.
    const bool is_double = prediction.scalar_type() == torch::kDouble;
    for (const Example& example : examples) {
      Buckets& buckets = classes_[example.label == 1 ? 1 : 0];
      const size_t at = is_double ? bucket_of(thresholds_, example.score)
                                  : bucket_of(thresholds_in_float_, static_cast<float>(example.score));
      buckets.weights[at].add(example.weight);
      ++buckets.examples;
    }
  }

  std::vector<double> counters() const override {
    std::vector<double> counters;
    for (const Buckets& buckets : classes_) {
      counters.push_back(static_cast<double>(buckets.examples));
      for (const ExactSum& weight : buckets.weights) {
        const std::vector<double> numbers = weight.numbers();
        counters.push_back(static_cast<double>(numbers.size()));
        counters.insert(counters.end(), numbers.begin(), numbers.end());
      }
    }
    return counters;
  }

  void merge(std::span<const double> counters) override {
    const auto read = [&](size_t count) {
      TUTTI_CHECK(count <= counters.size(), "{} counters are left, but {} are needed", counters.size(),
                  count);
      const auto taken = counters.first(count);
      counters = counters.subspan(count);
      return taken;
    };
    for (Buckets& buckets : classes_) {
      buckets.examples += static_cast<uint64_t>(read(1)[0]);
      for (ExactSum& weight : buckets.weights)
        weight.add(ExactSum::from(read(static_cast<size_t>(read(1)[0]))));
    }
    TUTTI_CHECK(counters.empty(), "{} counters too many for {} thresholds", counters.size(),
                thresholds_.size());
  }

  std::optional<double> value() const override {
    if (has_no_value()) return std::nullopt;
    const std::vector<CurvePoint> points = curve();
    const bool careful = options_.curve == Curve::PR && options_.summation == Summation::CarefulInterpolation;
    double area = 0;
    for (size_t i = 0; i + 1 < points.size(); ++i)
      area += careful ? area_by_positives(points[i], points[i + 1])
                      : area_by_ordinates(points[i], points[i + 1], options_.curve, options_.summation);
    return area;
  }
  std::string reason() const override {
    return reason_without_class(classes_[1].examples, classes_[0].examples, expected_.weights);
  }

  std::vector<CurvePoint> curve() const override {
    const std::vector<double> true_positives = classes_[1].above();
    const std::vector<double> false_positives = classes_[0].above();
    const std::vector<double> true_negatives = classes_[0].below();
    const std::vector<double> false_negatives = classes_[1].below();
    std::vector<CurvePoint> points;
    for (size_t i = 0; i < thresholds_.size(); ++i)
      points.push_back(
          {thresholds_[i], true_positives[i], false_positives[i], true_negatives[i], false_negatives[i]});
    return points;
  }
  bool has_uneven_thresholds() const override { return !options_.thresholds.empty(); }

  void reset() override {
    for (Buckets& buckets : classes_) buckets = {.weights = std::vector<ExactSum>(thresholds_.size() - 1)};
  }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<ThresholdAuc>(expected_, options_);
  }

 private:
  bool has_no_value() const {
    return classes_[1].examples == 0 || (options_.curve == Curve::ROC && classes_[0].examples == 0);
  }

  // Returns the position of the greatest threshold below the probability, which is between the outer two.
  template <class Score>
  static size_t bucket_of(const std::vector<Score>& thresholds, Score probability) {
    const auto not_below = std::lower_bound(thresholds.begin(), thresholds.end(), probability);
    return static_cast<size_t>(not_below - thresholds.begin()) - 1;
  }

  const Expected expected_;
  const AucOptions options_;
  const std::vector<double> thresholds_;
  const std::vector<float> thresholds_in_float_;
  std::array<Buckets, 2> classes_;
};

}  // namespace

double CurvePoint::recall() const { return true_positives / (true_positives + false_negatives); }

double CurvePoint::false_positive_rate() const {
  return false_positives / (false_positives + true_negatives);
}

double CurvePoint::precision() const {
  const double predicted = true_positives + false_positives;
  return predicted == 0 ? 1 : true_positives / predicted;
}

std::vector<CurvePoint> curve_points(const Metric& metric) {
  std::vector<CurvePoint> points = metric.curve();
  if (!points.empty()) return points;
  fail(ErrorKind::InvalidArgument, "'{}' has no points of a curve: only auc() and average_precision() have",
       metric.name());
}

MetricPtr threshold_auc(const std::string& label, const AucOptions& options) {
  const char* const own_name = options.curve == Curve::ROC ? "auc" : "pr_auc";
  const std::string name = options.name.empty() ? own_name : options.name;
  if (!options.thresholds.empty() && options.num_thresholds != 0)
    fail(ErrorKind::InvalidArgument, "{}: both .num_thresholds and .thresholds are given; leave out one",
         name);
  for (const double threshold : options.thresholds) {
    if (!(threshold >= 0 && threshold <= 1))
      fail(ErrorKind::InvalidArgument, "{}: a threshold of {}; expected probabilities, from 0 to 1", name,
           threshold);
  }
  const auto given = static_cast<int64_t>(options.thresholds.size());
  const bool is_number_good = options.num_thresholds >= 2 && options.num_thresholds <= kMostThresholds;
  if (given > kMostThresholds || (given == 0 && !is_number_good))
    fail(ErrorKind::InvalidArgument, "{}: {} thresholds; expected 2 to {}, or 0 for the exact area", name,
         std::max(given, options.num_thresholds), kMostThresholds);
  return std::make_shared<ThresholdAuc>(Expected{.metric = name,
                                                 .label = label,
                                                 .weights = options.weights,
                                                 .scores = Expected::Scores::Probabilities},
                                        options);
}

}  // namespace tutti::metrics
