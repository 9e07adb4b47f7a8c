#include <array>
#include <cmath>

#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

namespace tutti::metrics::threshold_auc_test {
namespace {

using testing::HasSubstr;

constexpr std::array kSummations = {Summation::Trapezoidal, Summation::CarefulInterpolation,
                                    Summation::Minoring, Summation::Majoring};

struct Case {
  std::vector<double> labels;
  std::vector<double> predictions;
  std::vector<double> weights = {};  // none: all are 1

  double area(const AucOptions& options, torch::ScalarType type = torch::kFloat) const {
    AucOptions all = options;
    if (!weights.empty()) all.weights = "weight";
    const auto metric = auc("label", all);
    metric->update(torch::tensor(predictions, torch::kDouble).to(type),
                   Batch({{"label", torch::tensor(labels, torch::kDouble)},
                          {"weight", weights.empty() ? torch::ones({static_cast<int64_t>(labels.size())})
                                                     : torch::tensor(weights, torch::kDouble)}}));
    return metric->value().value();
  }
};

const Case kA = {{0, 0, 1, 1}, {.1, .4, .35, .8}};
const Case kB = {{0, 1, 0, 1, 1, 0, 1, 0}, {.2, .3, .3, .6, .6, .6, .9, .05}};

// 200 examples from a linear congruential generator, whose numbers float32 represents exactly.
Case drawn_case() {
  Case drawn;
  uint32_t state = 7;
  const auto next = [&] {
    state = (state * 1103515245U + 12345U) % (1U << 31);
    return state >> 16;
  };
  for (int i = 0; i < 200; ++i) {
    const uint32_t k = next() % 65;
    drawn.labels.push_back(next() % 64 < (k + 16) / 2 ? 1 : 0);
    drawn.predictions.push_back(k / 64.0);
    drawn.weights.push_back((next() % 5) / 2.0);
  }
  return drawn;
}

struct Golden {
  const char* of;
  int64_t thresholds;
  Curve curve;
  std::array<double, 4> areas;  // by kSummations
};

// TensorFlow 2.21, tf.compat.v1.metrics.auc, which adds 1e-6 to counts before it divides.
constexpr std::array kTensorFlow = {
    Golden{"A", 2, Curve::ROC, {0.5000000, 0.5000000, 0.0000005, 0.9999995}},
    Golden{"A", 2, Curve::PR, {0.7499997, 0.5000000, 0.4999999, 0.9999995}},
    Golden{"A", 3, Curve::ROC, {0.7499998, 0.7499998, 0.5000000, 0.9999995}},
    Golden{"A", 3, Curve::PR, {0.8749996, 0.8206994, 0.7499996, 0.9999995}},
    Golden{"A", 11, Curve::ROC, {0.8749996, 0.8749996, 0.7499998, 0.9999995}},
    Golden{"A", 11, Curve::PR, {0.9166662, 0.8873265, 0.8333330, 0.9999995}},
    Golden{"A", 200, Curve::ROC, {0.7499998, 0.7499998, 0.7499998, 0.7499998}},
    Golden{"A", 200, Curve::PR, {0.7916663, 0.7972674, 0.7499998, 0.8333330}},
    Golden{"B", 3, Curve::ROC, {0.7499998, 0.7499998, 0.5624999, 0.9374998}},
    Golden{"B", 3, Curve::PR, {0.8124998, 0.7116434, 0.6874999, 0.9374998}},
    Golden{"B", 11, Curve::ROC, {0.8437498, 0.8437498, 0.7499999, 0.9374998}},
    Golden{"B", 11, Curve::PR, {0.8645831, 0.8360329, 0.7916665, 0.9374998}},
    Golden{"B", 200, Curve::ROC, {0.8437498, 0.8437498, 0.7499999, 0.9374998}},
    Golden{"B", 200, Curve::PR, {0.8645831, 0.8360329, 0.7916665, 0.9374998}},
    Golden{"C", 3, Curve::ROC, {0.6470828, 0.6470828, 0.4161566, 0.8780090}},
    Golden{"C", 3, Curve::PR, {0.6968560, 0.5411797, 0.5249100, 0.8688021}},
    Golden{"C", 11, Curve::ROC, {0.7063444, 0.7063444, 0.6631986, 0.7494900}},
    Golden{"C", 11, Curve::PR, {0.6092873, 0.5772744, 0.5650960, 0.6534786}},
    Golden{"C", 200, Curve::ROC, {0.7021114, 0.7021114, 0.6954304, 0.7087923}},
    Golden{"C", 200, Curve::PR, {0.5669162, 0.5678706, 0.5559076, 0.5779248}},
    Golden{"C weighted", 2, Curve::PR, {0.7135550, 0.4271100, 0.4271100, 1.0000000}},
    Golden{"C weighted", 3, Curve::ROC, {0.6822872, 0.6822872, 0.4611313, 0.9034431}},
    Golden{"C weighted", 3, Curve::PR, {0.7241684, 0.5674092, 0.5508428, 0.8974941}},
    Golden{"C weighted", 11, Curve::ROC, {0.7556270, 0.7556270, 0.7152748, 0.7959794}},
    Golden{"C weighted", 11, Curve::PR, {0.6739550, 0.6413994, 0.6196759, 0.7282341}},
    Golden{"C weighted", 200, Curve::ROC, {0.7560415, 0.7560415, 0.7505346, 0.7615483}},
    Golden{"C weighted", 200, Curve::PR, {0.6325440, 0.6344968, 0.6163245, 0.6487635}},
};

TEST(ThresholdAuc, agrees_with_TensorFlow) {
  const Case weighted = drawn_case();
  const Case unweighted{weighted.labels, weighted.predictions};
  for (const Golden& golden : kTensorFlow) {
    const std::string of = golden.of;
    const Case& examples = of == "A" ? kA : of == "B" ? kB : of == "C" ? unweighted : weighted;
    for (size_t i = 0; i < kSummations.size(); ++i) {
      const AucOptions options = {
          .num_thresholds = golden.thresholds, .curve = golden.curve, .summation = kSummations[i]};
      EXPECT_NEAR(examples.area(options), golden.areas[i], 1e-6)
          << of << ", " << golden.thresholds << ", " << (golden.curve == Curve::ROC ? "ROC, " : "PR, ") << i;
    }
  }
}

// These are the values of the formulas in double precision, without TensorFlow's 1e-6.
TEST(ThresholdAuc, agrees_with_the_formulas) {
  const auto area = [](const Case& examples, int64_t thresholds, Curve curve, Summation summation) {
    return examples.area({.num_thresholds = thresholds, .curve = curve, .summation = summation},
                         torch::kDouble);
  };
  EXPECT_EQ(area(kA, 3, Curve::ROC, Summation::Trapezoidal), 0.75);
  EXPECT_EQ(area(kA, 3, Curve::ROC, Summation::CarefulInterpolation), 0.75);
  EXPECT_EQ(area(kA, 3, Curve::ROC, Summation::Minoring), 0.5);
  EXPECT_EQ(area(kA, 3, Curve::ROC, Summation::Majoring), 1);
  EXPECT_NEAR(area(kA, 200, Curve::PR, Summation::Trapezoidal), 19.0 / 24, 1e-15);
  EXPECT_NEAR(area(kA, 200, Curve::PR, Summation::Majoring), 5.0 / 6, 1e-15);
  // Up to the first positive the precision is 1. From there to 2 positives of 4 predictions the precision is
  // (P / 3 + 2 / 3) / P, which is integrated over the positives, that is, over P / 3.
  EXPECT_NEAR(area(kA, 3, Curve::PR, Summation::CarefulInterpolation),
              0.5 + (1 + 2.0 / 3 * std::log(4.0)) / 3 / 2, 1e-15);
}

TEST(ThresholdAuc, approaches_the_exact_area_with_many_thresholds) {
  const TestExamples examples = drawn_examples(21, 400);
  for (const std::string weights : {"", "weight"}) {
    const auto exact = auc("label", {.weights = weights});
    const auto near = auc("label", {.weights = weights, .num_thresholds = 1 << 20});
    examples.update(*exact);
    examples.update(*near);
    EXPECT_NEAR(near->value().value(), exact->value().value(), 1e-4);
  }
}

TEST(ThresholdAuc, has_the_points_of_its_curve) {
  const TestExamples examples = drawn_examples(22, 500);
  const auto metric = auc("label", {.weights = "weight", .num_thresholds = 21});
  examples.update(*metric);
  const std::vector<CurvePoint> points = curve_points(*metric);
  ASSERT_EQ(points.size(), 21U);
  EXPECT_EQ(points.front().threshold, -1e-7);
  EXPECT_EQ(points[1].threshold, 0.05);
  EXPECT_EQ(points.back().threshold, 1 + 1e-7);
  const torch::Tensor weight = examples.batch["weight"];
  const torch::Tensor positive = examples.batch["label"].eq(1);
  for (const CurvePoint& point : points) {
    const torch::Tensor above = examples.prediction > point.threshold;
    const auto sum = [&](const torch::Tensor& of) { return (weight * of).sum().item<double>(); };
    EXPECT_NEAR(point.true_positives, sum(above & positive), 1e-9);
    EXPECT_NEAR(point.false_positives, sum(above & positive.logical_not()), 1e-9);
    EXPECT_NEAR(point.true_negatives, sum((above | positive).logical_not()), 1e-9);
    EXPECT_NEAR(point.false_negatives, sum(above.logical_not() & positive), 1e-9);
  }
  EXPECT_EQ(points.front().recall(), 1);
  EXPECT_EQ(points.front().false_positive_rate(), 1);
  EXPECT_EQ(points.back().recall(), 0);
  EXPECT_EQ(points.back().precision(), 1);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("'mse' has no points of a curve"),
               [] { curve_points(*mse("label")); });
}

// The thresholds of .num_thresholds, given as numbers, have the same areas and points.
TEST(ThresholdAuc, takes_thresholds_that_are_given) {
  const TestExamples examples = drawn_examples(23, 500);
  std::vector<double> tenths;
  for (int i = 9; i > 0; --i) tenths.push_back(i / 10.0);
  for (const Curve curve : {Curve::ROC, Curve::PR}) {
    for (const Summation summation : kSummations) {
      for (const auto type : {torch::kFloat, torch::kDouble}) {
        const auto even = auc("label", {.num_thresholds = 11, .curve = curve, .summation = summation});
        const auto given = auc("label", {.thresholds = tenths, .curve = curve, .summation = summation});
        for (const MetricPtr& metric : {even, given})
          metric->update(examples.prediction.to(type), examples.batch);
        EXPECT_EQ(given->value(), even->value());
        EXPECT_EQ(given->name(), even->name());
        EXPECT_FALSE(even->has_uneven_thresholds());
        EXPECT_TRUE(given->has_uneven_thresholds());
      }
    }
  }
  const auto one = auc("label", {.thresholds = {0.35}});
  examples.update(*one);
  const std::vector<CurvePoint> points = curve_points(*one);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[1].threshold, 0.35);
  for (const auto& [metric, expected] :
       {std::pair(precision("label", {.threshold = 0.35}), points[1].precision()),
        std::pair(recall("label", {.threshold = 0.35}), points[1].recall())}) {
    examples.update(*metric);
    EXPECT_EQ(metric->value(), expected) << metric->name();
  }
}

TEST(ThresholdAuc, refuses_thresholds_that_are_no_probabilities) {
  for (const double bad : {-0.1, 1.1, std::nan("")})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("auc: a threshold of"), [&] {
      auc("label", {.thresholds = {0.5, bad}});
    });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("both .num_thresholds and .thresholds"),
               [] { auc("label", {.num_thresholds = 5, .thresholds = {0.5}}); });
}

TEST(ThresholdAuc, does_not_count_a_probability_at_a_threshold_as_above_it) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const auto metric = auc("label", {.num_thresholds = 11});
    const torch::Tensor probabilities = torch::arange(11, torch::kDouble).div(10).to(type);
    metric->update(probabilities, Batch({{"label", torch::ones({11})}}));
    const std::vector<CurvePoint> points = curve_points(*metric);
    for (size_t i = 1; i < 10; ++i)
      EXPECT_EQ(points[i].true_positives, static_cast<double>(10 - i)) << type << " " << i;
    EXPECT_EQ(points[0].true_positives, 11);
    EXPECT_EQ(points[10].true_positives, 0);
  }
}

TEST(ThresholdAuc, says_which_class_is_missing) {
  const auto roc = auc("label", {.num_thresholds = 5});
  const auto pr = auc("label", {.num_thresholds = 5, .curve = Curve::PR});
  EXPECT_EQ(roc->name(), "auc");
  EXPECT_EQ(pr->name(), "pr_auc");
  for (const MetricPtr& metric : {roc, pr}) {
    EXPECT_EQ(metric->reason(), "no example has a label");
    metric->update(torch::tensor({0.1}), Batch({{"label", torch::tensor({0})}}));
    EXPECT_EQ(metric->value(), std::nullopt);
    EXPECT_EQ(metric->reason(), "the only example is of class 0");
    metric->reset();
    metric->update(torch::tensor({0.1, 0.9}), Batch({{"label", torch::tensor({1, 1})}}));
  }
  EXPECT_EQ(roc->value(), std::nullopt);
  EXPECT_EQ(roc->reason(), "all 2 examples are of class 1");
  EXPECT_EQ(pr->value(), 1.0);
}

TEST(ThresholdAuc, needs_probabilities_and_two_thresholds) {
  const auto metric = auc("label", {.num_thresholds = 200});
  for (const double bad : {-1e-9, 1.0000001, 7.0, static_cast<double>(INFINITY)}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("auc: 1 of 2 predictions are no probabilities"), [&] {
      metric->update(torch::tensor({0.5, bad}, torch::kDouble), Batch({{"label", torch::tensor({0, 1})}}));
    });
  }
  expect_error(ErrorKind::InvalidArgument, HasSubstr("expected one probability"), [&] {
    metric->update(torch::zeros({2, 2}), Batch({{"label", torch::tensor({0, 1})}}));
  });
  EXPECT_EQ(metric->value(), std::nullopt);
  for (const int64_t count : {1, -3, 1 << 21})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("thresholds; expected 2 to"),
                 [&] { auc("label", {.num_thresholds = count}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("average_precision()"),
               [] { auc("label", {.curve = Curve::PR}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr(".num_thresholds"),
               [] { auc("label", {.summation = Summation::Minoring}); });
}

}  // namespace
}  // namespace tutti::metrics::threshold_auc_test
