#include "tutti/metrics/ranking.h"

#include <cmath>
#include <limits>
#include <random>

#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/score_counts.h"
#include "tutti/metrics/test_metrics.h"

namespace tutti::metrics::ranking_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Weighted {
  double score;
  double label;
  double weight;
};

std::vector<Weighted> weighted_of(const TestExamples& examples) {
  std::vector<Weighted> all;
  for (int64_t i = 0; i < examples.size(); ++i)
    all.push_back({examples.prediction[i].item<double>(), examples.batch["label"][i].item<double>(),
                   examples.batch["weight"][i].item<double>()});
  return all;
}

TEST(Auc, weighs_pairs_by_the_product_of_their_weights) {
  const TestExamples examples = drawn_examples(41, 250);
  double right = 0;
  double pairs = 0;
  const std::vector<Weighted> all = weighted_of(examples);
  for (const Weighted& p : all) {
    for (const Weighted& n : all) {
      if (p.label != 1 || n.label != 0) continue;
      pairs += p.weight * n.weight;
      right += p.weight * n.weight * (p.score > n.score ? 1 : p.score == n.score ? 0.5 : 0);
    }
  }
  const auto metric = auc("label", {.weights = "weight"});
  examples.update(*metric);
  EXPECT_NEAR(metric->value().value(), right / pairs, 1e-12);
}

TEST(AveragePrecision, is_the_mean_precision_at_the_positives) {
  const TestExamples examples = drawn_examples(42, 250);
  for (const std::string weights : {"", "weight"}) {
    const auto metric = average_precision("label", {.weights = weights});
    examples.update(*metric);
    std::vector<Weighted> all = weighted_of(examples);
    if (weights.empty()) {
      for (Weighted& one : all) one.weight = 1;
    }
    double sum = 0;
    double positives = 0;
    for (const Weighted& at : all) {
      double found = 0;
      double predicted = 0;
      for (const Weighted& one : all) {
        if (one.score < at.score) continue;
        found += one.weight * one.label;
        predicted += one.weight;
      }
      if (at.label == 1 && at.weight > 0) sum += at.weight * found / predicted;
      positives += at.weight * at.label;
    }
    EXPECT_NEAR(metric->value().value(), sum / positives, 1e-12);
  }
}

// This is the example in scikit-learn's documentation of average_precision_score.
TEST(AveragePrecision, agrees_with_a_published_example) {
  const auto metric = average_precision("label");
  metric->update(torch::tensor({0.1, 0.4, 0.35, 0.8}), Batch({{"label", torch::tensor({0, 0, 1, 1})}}));
  EXPECT_NEAR(metric->value().value(), 5.0 / 6, 1e-15);
  metric->reset();
  metric->update(torch::tensor({0.1, 0.4}), Batch({{"label", torch::tensor({0, 0})}}));
  EXPECT_EQ(metric->value(), std::nullopt);
  EXPECT_EQ(metric->reason(), "all 2 examples are of class 0");
  metric->reset();
  metric->update(torch::tensor({0.1, 0.4}), Batch({{"label", torch::tensor({1, 1})}}));
  EXPECT_EQ(metric->value(), 1.0);
}

// Large enough for the radix sort, with all magnitudes and both signs.
template <class Score>
void expect_sorted_as_numbers() {
  std::mt19937_64 random(43);
  std::vector<Score> scores = {0,
                               -Score{0},
                               INFINITY,
                               -INFINITY,
                               std::numeric_limits<Score>::denorm_min(),
                               std::numeric_limits<Score>::lowest(),
                               std::numeric_limits<Score>::max()};
  while (scores.size() < 40000)
    scores.push_back(static_cast<Score>(
        std::ldexp(static_cast<double>(random() % 4001) - 2000.0, static_cast<int>(random() % 100) - 50)));
  std::vector<int64_t> classes;
  for (size_t i = 0; i < scores.size(); ++i) classes.push_back(random() % 3 == 0 ? 1 : 0);
  const torch::Tensor score = torch::tensor(scores, torch::CppTypeToScalarType<Score>::value);
  const torch::Tensor label = torch::tensor(classes, torch::kLong);
  const auto metric = auc("label");
  metric->update(score, Batch({{"label", label}}));
  std::vector<double> negatives;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (classes[i] == 0) negatives.push_back(scores[i]);
  }
  std::sort(negatives.begin(), negatives.end());
  double ordered = 0;  // whole and half numbers below 2^53, so the sum is exact
  for (size_t i = 0; i < scores.size(); ++i) {
    if (classes[i] == 0) continue;
    const auto [below, above] = std::equal_range(negatives.begin(), negatives.end(), double{scores[i]});
    ordered += static_cast<double>(below - negatives.begin()) + 0.5 * static_cast<double>(above - below);
  }
  const auto n = static_cast<double>(negatives.size());
  EXPECT_EQ(metric->value(), ordered / n / (static_cast<double>(scores.size()) - n));
  const std::vector<double> counters = metric->counters();
  for (size_t i = 3; i < counters.size(); i += 3) EXPECT_LT(counters[i - 3], counters[i]);
}

TEST(Auc, sorts_float32_as_numbers) { expect_sorted_as_numbers<float>(); }
TEST(Auc, sorts_float64_as_numbers) { expect_sorted_as_numbers<double>(); }

TEST(Auc, ranks_scores_of_different_types_together) {
  const torch::Tensor half = torch::tensor({0.1, 0.5, 0.9}, torch::kDouble);
  const Batch batch({{"label", torch::tensor({0, 1, 0})}});
  const auto metric = auc("label");
  const auto as_double = auc("label");
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    metric->update(half.to(type), batch);
    as_double->update(half.to(type).to(torch::kDouble), batch);
  }
  metric->update(torch::tensor({0, 1, 0}, torch::kInt), batch);
  as_double->update(torch::tensor({0, 1, 0}, torch::kDouble), batch);
  EXPECT_EQ(metric->value(), as_double->value());
  EXPECT_EQ(metric->counters(), as_double->counters());
  // In float32 both 0.1 are a tie, but not across the types.
  const auto across = auc("label");
  across->update(torch::tensor({0.1F}), Batch({{"label", torch::tensor({1})}}));
  across->update(torch::tensor({0.1}, torch::kDouble), Batch({{"label", torch::tensor({0})}}));
  EXPECT_EQ(across->value(), 1.0);
}

TEST(Auc, keeps_scores_that_repeat_in_little_memory) {
  ScoreCounts counts;
  const torch::Tensor scores = (torch::arange(int64_t{1} << 20) * 7919).remainder(1000).to(torch::kFloat);
  const torch::Tensor labels = torch::arange(int64_t{1} << 20).remainder(3).eq(0).to(torch::kLong);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(counts.add(scores, labels));
  EXPECT_EQ(counts.positives() + counts.negatives(), 40U << 20);
  EXPECT_LE(counts.kept(), (size_t{1} << 24) + 1000);
  const std::vector<Bin> bins = counts.bins();
  ASSERT_EQ(bins.size(), 1000U);
  EXPECT_EQ(bins[7].score, 7);
  EXPECT_EQ(bins[7].positives, 40 * (scores.eq(7) & labels.eq(1)).sum().item<int64_t>());
  EXPECT_EQ(bins[7].negatives, 40 * (scores.eq(7) & labels.eq(0)).sum().item<int64_t>());
}

TEST(Auc, counts_nothing_of_a_batch_with_an_error_in_its_last_chunk) {
  const auto metric = auc("label");
  const torch::Tensor scores = torch::rand({20000});
  const torch::Tensor label = torch::arange(20000).remainder(2);
  metric->update(scores, Batch({{"label", label}}));
  const auto before = metric->counters();
  torch::Tensor bad_scores = scores.clone();
  bad_scores[19999] = std::nan("");
  torch::Tensor bad_label = label.clone();
  bad_label[19998] = 2;
  const auto is_in = [](const std::string& example) {
    return HasSubstr(", in example " + example + " of the batch)");
  };
  expect_error(ErrorKind::InvalidArgument, AllOf(HasSubstr("1 of 20000 predictions are NaN"), is_in("19999")),
               [&] {
                 metric->update(bad_scores, Batch({{"label", label}}));
               });
  expect_error(ErrorKind::InvalidArgument,
               AllOf(HasSubstr("1 of 20000 labels in 'label' are not 0, 1"), is_in("19998")), [&] {
                 metric->update(scores, Batch({{"label", bad_label}}));
               });
  EXPECT_EQ(metric->counters(), before);
}

// A threshold is not below its score, so that the last point has no predictions of class 1.
TEST(ExactCurve, has_a_point_for_each_score) {
  const Batch batch(
      {{"label", torch::tensor({0, 1, 1, 0, 1})}, {"w", torch::tensor({1.0, 2.0, 0.5, 4.0, 0.0})}});
  const torch::Tensor scores = torch::tensor({-2.0, 1.5, 1.5, 3.0, 7.0});
  const std::vector<CurvePoint> expected = {
      {-INFINITY, 2.5, 5, 0, 0}, {-2, 2.5, 4, 1, 0}, {1.5, 0, 4, 1, 2.5}, {3, 0, 0, 5, 2.5}};
  for (const MetricPtr& metric :
       List{auc("label", {.weights = "w"}), average_precision("label", {.weights = "w"})}) {
    metric->update(scores, batch);
    const std::vector<CurvePoint> points = curve_points(*metric);
    ASSERT_EQ(points.size(), expected.size());
    for (size_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(points[i].threshold, expected[i].threshold);
      EXPECT_EQ(points[i].true_positives, expected[i].true_positives);
      EXPECT_EQ(points[i].false_positives, expected[i].false_positives);
      EXPECT_EQ(points[i].true_negatives, expected[i].true_negatives);
      EXPECT_EQ(points[i].false_negatives, expected[i].false_negatives);
    }
    EXPECT_EQ(points.back().precision(), 1);
    EXPECT_EQ(points.back().recall(), 0);
    EXPECT_TRUE(metric->has_uneven_thresholds());
  }
  EXPECT_EQ(curve_points(*auc("label")).size(), 1U) << "without examples";
}

TEST(ExactCurve, has_the_same_points_for_any_number_of_workers) {
  const TestExamples examples = drawn_examples(43, 600);
  for (const std::string weights : {"", "weight"}) {
    const List whole = {average_precision("label", {.weights = weights})};
    examples.update(*whole[0]);
    for (const int parts : {1, 3}) {
      const List merged = {average_precision("label", {.weights = weights})};
      count_in_parts(examples, merged, parts, 7);
      const auto points = curve_points(*merged[0]);
      const auto expected = curve_points(*whole[0]);
      ASSERT_EQ(points.size(), expected.size());
      for (size_t i = 0; i < points.size(); ++i) {
        EXPECT_EQ(points[i].true_positives, expected[i].true_positives);
        EXPECT_EQ(points[i].false_positives, expected[i].false_positives);
      }
    }
  }
}

TEST(Auc, says_which_class_is_missing) {
  for (const std::string weights : {"", "w"}) {
    const auto metric = auc("label", {.weights = weights});
    const Batch batch({{"label", torch::tensor({1, 1, 1})}, {"w", torch::tensor({0.5, 1.0, 2.0})}});
    metric->update(torch::tensor({0.1, 0.2, 0.3}), batch);
    EXPECT_EQ(metric->value(), std::nullopt);
    EXPECT_EQ(metric->reason(), "all 3 examples are of class 1");
  }
}

}  // namespace
}  // namespace tutti::metrics::ranking_test
