#include "tutti/metrics/metrics.h"

#include <cmath>
#include <random>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::metrics::metrics_test {
namespace {

using testing::HasSubstr;

Batch labels(const torch::Tensor& tensor) { return Batch({{"label", tensor}}); }

// Follows the definition: among all pairs of a positive and a negative example, the share in which the
// positive one has the higher score.
std::optional<double> auc_by_pairs(const std::vector<double>& scores, const std::vector<int64_t>& classes) {
  double right = 0;
  double pairs = 0;
  for (size_t p = 0; p < scores.size(); ++p) {
    for (size_t n = 0; n < scores.size(); ++n) {
      if (classes[p] != 1 || classes[n] != 0) continue;
      pairs += 1;
      right += scores[p] > scores[n] ? 1 : scores[p] == scores[n] ? 0.5 : 0;
    }
  }
  if (pairs == 0) return std::nullopt;
  return right / pairs;
}

struct Scored {
  std::vector<double> scores;
  std::vector<int64_t> classes;

  torch::Tensor score_tensor(size_t begin, size_t end) const {
    return torch::tensor(std::vector<double>(scores.begin() + begin, scores.begin() + end), torch::kDouble);
  }
  Batch batch(size_t begin, size_t end) const {
    return labels(torch::tensor(std::vector<int64_t>(classes.begin() + begin, classes.begin() + end)));
  }
};

// Draws scores with few distinct values, so that there are many ties.
Scored draw(uint32_t seed, size_t count, int distinct) {
  std::mt19937 random(seed);
  Scored drawn;
  for (size_t i = 0; i < count; ++i) {
    drawn.classes.push_back(std::bernoulli_distribution(0.3)(random) ? 1 : 0);
    const int score = std::uniform_int_distribution<int>(0, distinct)(random);
    const int shift = drawn.classes.back() == 1 ? distinct / 4 : 0;
    drawn.scores.push_back(0.37 * (score + shift));
  }
  return drawn;
}

TEST(Metric, fits_into_a_braced_list) {
  const List list = {accuracy("label"), auc("label"), mse("label"), rmse("label")};
  std::vector<std::string> names;
  for (const MetricPtr& metric : list) names.push_back(metric->name());
  EXPECT_THAT(names, testing::ElementsAre("accuracy", "auc", "mse", "rmse"));
}

TEST(Metric, has_no_value_before_an_example) {
  for (const MetricPtr& metric : List{accuracy("label"), auc("label"), mse("label"), rmse("label")}) {
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    metric->update(torch::zeros({0}), labels(torch::zeros({0})));
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    metric->merge(metric->clone()->counters());
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
  }
}

TEST(Metric, forgets_when_reset_and_starts_anew_when_cloned) {
  for (const MetricPtr& metric : List{accuracy("label"), auc("label"), mse("label")}) {
    metric->update(torch::tensor({0.1, 0.9}), labels(torch::tensor({1, 0})));
    const auto value = metric->value();
    ASSERT_TRUE(value);
    const auto clone = metric->clone();
    EXPECT_EQ(clone->name(), metric->name());
    EXPECT_EQ(clone->value(), std::nullopt);
    EXPECT_EQ(metric->value(), value);
    metric->reset();
    EXPECT_EQ(metric->value(), std::nullopt);
    clone->update(torch::tensor({0.1, 0.9}), labels(torch::tensor({1, 0})));
    EXPECT_EQ(clone->value(), value);
  }
}

TEST(Metric, names_the_label_that_is_missing) {
  expect_error(ErrorKind::InvalidArgument, HasSubstr("class"), [] {
    accuracy("class")->update(torch::zeros({1, 2}), labels(torch::zeros({1})));
  });
}

TEST(Accuracy, is_the_share_of_right_answers) {
  const auto metric = accuracy("label");
  metric->update(torch::tensor({{0.1, 0.7, 0.2}, {3.0, 1.0, 2.0}}), labels(torch::tensor({1, 2})));
  EXPECT_EQ(metric->value(), 0.5);
  metric->update(torch::tensor({{0.0, 0.0, 1.0}, {0.0, 0.0, 1.0}}), labels(torch::tensor({{2}, {2}})));
  EXPECT_EQ(metric->value(), 0.75);
}

TEST(Accuracy, answers_one_column_by_a_threshold) {
  const auto logits = accuracy("label");
  logits->update(torch::tensor({{-1.0}, {2.0}, {0.0}, {0.1}}), labels(torch::tensor({0.0, 1.0, 0.0, 0.0})));
  EXPECT_EQ(logits->value(), 0.75);
  const auto probabilities = accuracy("label", {.threshold = 0.5});
  probabilities->update(torch::tensor({0.4, 0.6}), labels(torch::tensor({0, 1}, torch::kInt)));
  EXPECT_EQ(probabilities->value(), 1.0);
}

TEST(Accuracy, counts_every_place_of_a_picture) {
  const auto metric = accuracy("label");
  torch::Tensor prediction = torch::zeros({2, 3, 4, 4});
  prediction.select(1, 2).fill_(1);
  torch::Tensor classes = torch::full({2, 4, 4}, 2, torch::kLong);
  classes[0][0].fill_(1);
  metric->update(prediction, labels(classes));
  EXPECT_EQ(metric->value(), 28.0 / 32);
}

TEST(Accuracy, refuses_shapes_that_do_not_go_together) {
  const auto metric = accuracy("label");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("[2, 3] do not match 'label' of shape [3]"), [&] {
    metric->update(torch::zeros({2, 3}), labels(torch::zeros({3})));
  });
  EXPECT_EQ(metric->value(), std::nullopt);
}

TEST(SquaredError, is_a_mean_in_double_precision) {
  const auto squared = mse("label");
  const auto root = rmse("label");
  for (const MetricPtr& metric : {squared, root}) {
    metric->update(torch::tensor({{1.0F}, {2.0F}}), labels(torch::tensor({2.0F, 4.0F})));
    metric->update(torch::tensor({0.0F}), labels(torch::tensor({2.0F})));
  }
  EXPECT_EQ(squared->value(), 3.0);
  EXPECT_EQ(root->value(), std::sqrt(3.0));
  EXPECT_THROW(squared->update(torch::zeros({2, 2}), labels(torch::zeros({2}))), Error);
}

TEST(Mean, counts_a_value_of_the_batch_for_each_example) {
  const auto metric =
      mean("loss", [](const torch::Tensor& prediction, const Batch&) { return prediction.mean(); });
  metric->update(torch::tensor({1.0}), labels(torch::zeros({1})));
  metric->update(torch::tensor({4.0, 4.0, 4.0}), labels(torch::zeros({3})));
  EXPECT_EQ(metric->name(), "loss");
  EXPECT_EQ(metric->value(), 13.0 / 4);
}

TEST(Mean, takes_a_value_of_each_example) {
  const auto metric = mean("score", [](const torch::Tensor& prediction, const Batch&) { return prediction; });
  metric->update(torch::tensor({1.0, 2.0, 6.0}), labels(torch::zeros({3})));
  EXPECT_EQ(metric->value(), 3.0);
  expect_error(ErrorKind::InvalidArgument, HasSubstr("shape [2]"),
               [&] { metric->update(torch::zeros({2}), labels(torch::zeros({3}))); });
}

TEST(Mean, keeps_no_graph) {
  const auto metric =
      mean("loss", [](const torch::Tensor& prediction, const Batch&) { return prediction.sum(); });
  metric->update(torch::ones({2}, torch::requires_grad()), labels(torch::zeros({2})));
  EXPECT_EQ(metric->value(), 2.0);
}

TEST(RunningMeans, merge_as_if_one_had_seen_all) {
  const torch::Tensor prediction = torch::randn({30, 5});
  const torch::Tensor classes = torch::randint(0, 5, {30}, torch::kLong);
  const auto whole = accuracy("label");
  whole->update(prediction, labels(classes));
  const auto merged = accuracy("label");
  for (int64_t part = 0; part < 3; ++part) {
    const auto worker = merged->clone();
    worker->update(prediction.narrow(0, 10 * part, 10), labels(classes.narrow(0, 10 * part, 10)));
    merged->merge(worker->counters());
  }
  EXPECT_EQ(merged->value(), whole->value());
  EXPECT_THROW(merged->merge(std::vector<double>{1}), Error);
}

TEST(Metric, has_a_name_of_its_own_or_one_that_is_given) {
  const List list = {accuracy("label", {.name = "a"}), auc("label", {.name = "b"}),
                     mse("label", {.name = "c"}), rmse("label", {.name = "d"})};
  std::vector<std::string> names;
  for (const MetricPtr& metric : list) {
    names.push_back(metric->name());
    EXPECT_EQ(metric->clone()->name(), metric->name());
  }
  EXPECT_THAT(names, testing::ElementsAre("a", "b", "c", "d"));
  EXPECT_NO_THROW(require_distinct_names({auc("x"), auc("y", {.name = "auc_of_y"})}));
  expect_error(ErrorKind::InvalidArgument,
               testing::AllOf(HasSubstr("two metrics are called 'auc'"), HasSubstr(".name = ")), [] {
                 require_distinct_names({auc("x"), mse("x"), auc("y")});
               });
}

TEST(Accuracy, takes_one_hot_labels_and_class_numbers_alike) {
  const torch::Tensor prediction = torch::randn({40, 5, 3});
  const torch::Tensor classes = torch::randint(0, 5, {40, 3}, torch::kLong);
  const auto by_number = accuracy("label");
  by_number->update(prediction, labels(classes));
  const torch::Tensor one_hot = torch::one_hot(classes, 5).transpose(1, 2);
  for (const auto type : {torch::kLong, torch::kFloat, torch::kByte, torch::kBool}) {
    const auto metric = accuracy("label");
    metric->update(prediction, labels(one_hot.to(type)));
    EXPECT_EQ(metric->value(), by_number->value());
  }
  // A row with a missing label is left out.
  torch::Tensor some = torch::eye(3);
  some[1].fill_(std::nan(""));
  const auto metric = accuracy("label");
  metric->update(torch::tensor({{1.0, 0.0, 0.0}, {0.0, 1.0, 0.0}, {1.0, 0.0, 0.0}}), labels(some));
  EXPECT_EQ(metric->value(), 0.5);
  for (const torch::Tensor& bad : {torch::ones({2, 2}), torch::zeros({2, 2}), torch::full({2, 2}, 0.5)}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("are not one-hot"), [&] {
      accuracy("label")->update(torch::zeros({2, 2}), labels(bad));
    });
  }
}

TEST(Accuracy, tells_more_classes_apart_than_the_type_of_the_labels_holds) {
  const auto metric = accuracy("label");
  torch::Tensor prediction = torch::zeros({1, 300});
  prediction[0][256] = 1;
  metric->update(prediction, labels(torch::zeros({1}, torch::kByte)));
  EXPECT_EQ(metric->value(), 0);
}

// Compares with 128-bit integers: all numbers are whole multiples of 2^-60.
TEST(ExactSum, is_the_sum_rounded_once) {
  __extension__ using Wide = __int128;
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    ExactSum sum;
    Wide exact = 0;
    for (int i = 0; i < 100; ++i) {
      const int64_t number = static_cast<int64_t>(random()) >> (random() % 63);
      // It has at most 53 bits, so that it is exact as a double.
      const int64_t whole = number / 2048 * 2048;
      sum.add(std::ldexp(static_cast<double>(whole), -60));
      exact += whole;
    }
    // The compiler rounds a wide integer to the nearest double, ties to even.
    EXPECT_EQ(sum.value(), std::ldexp(static_cast<double>(exact), -60)) << round;
    EXPECT_EQ(ExactSum::from(sum.numbers()).value(), sum.value());
  }
}

TEST(ExactSum, forgets_nothing_small) {
  ExactSum sum;
  for (const double number : {1e300, 1.0, 1e-300, -1e300, -1.0}) sum.add(number);
  EXPECT_EQ(sum.value(), 1e-300);
  sum.add(-1e-300);
  EXPECT_EQ(sum.value(), 0);
  ExactSum half;  // 2^53 + 1 lies between two doubles; the last number decides
  for (const double number : {std::ldexp(1.0, 53), 1.0, 1e-30}) half.add(number);
  EXPECT_EQ(half.value(), std::ldexp(1.0, 53) + 2);
}

TEST(ExactSum, is_infinite_or_no_number_as_an_ordinary_sum) {
  const auto sum_of = [](const std::vector<double>& numbers) {
    ExactSum sum;
    for (const double number : numbers) sum.add(number);
    for (const double number : sum.numbers()) EXPECT_TRUE(std::isfinite(number));
    return ExactSum::from(sum.numbers()).value();
  };
  EXPECT_EQ(sum_of({1, INFINITY, 2}), INFINITY);
  EXPECT_EQ(sum_of({-INFINITY, 2}), -INFINITY);
  EXPECT_TRUE(std::isnan(sum_of({INFINITY, 1, -INFINITY})));
  EXPECT_TRUE(std::isnan(sum_of({1, NAN})));
  EXPECT_EQ(sum_of({1e308, 1e308, 1e308}), INFINITY);
}

// The last digits of the loss decide which restart is kept.
TEST(RunningMeans, have_the_same_bits_at_every_number_of_workers_and_in_every_order) {
  torch::manual_seed(5);
  const int64_t batches = 12;
  const torch::Tensor prediction =
      torch::randn({batches * 7}, torch::kDouble) * torch::randn({batches * 7}, torch::kDouble).mul(9).exp();
  const torch::Tensor label = torch::randn({batches * 7}, torch::kDouble);
  const auto value = [](const torch::Tensor& all, const Batch&) { return all; };
  const auto of_batch = [](const torch::Tensor& all, const Batch&) { return all.mean(); };
  for (const MetricPtr& metric :
       List{mse("label"), rmse("label"), mean("each", value), mean("batch", of_batch)}) {
    std::vector<double> found;
    for (const int64_t workers : {1, 2, 3, 4, 6, 12}) {
      const auto merged = metric->clone();
      for (int64_t turn = 0; turn < workers; ++turn) {
        const int64_t worker = workers % 2 == 0 ? workers - 1 - turn : turn;
        const auto own = metric->clone();
        for (int64_t batch = worker; batch < batches; batch += workers)
          own->update(prediction.narrow(0, 7 * batch, 7), labels(label.narrow(0, 7 * batch, 7)));
        merged->merge(own->counters());
      }
      found.push_back(merged->value().value());
    }
    EXPECT_THAT(found, testing::Each(found[0])) << metric->name();
  }
}

TEST(Auc, agrees_with_its_definition_ties_included) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Scored drawn = draw(seed, 1 + 20 * seed, 1 + static_cast<int>(seed) * 3);
    const auto metric = auc("label");
    metric->update(drawn.score_tensor(0, drawn.scores.size()), drawn.batch(0, drawn.scores.size()));
    const auto expected = auc_by_pairs(drawn.scores, drawn.classes);
    ASSERT_EQ(metric->value().has_value(), expected.has_value()) << seed;
    if (expected) {
      EXPECT_NEAR(*metric->value(), *expected, 1e-14) << seed;
    }
  }
}

// This is the example in scikit-learn's documentation of roc_auc_score.
TEST(Auc, agrees_with_a_published_example) {
  const auto metric = auc("label");
  metric->update(torch::tensor({0.1, 0.4, 0.35, 0.8}), labels(torch::tensor({0, 0, 1, 1})));
  EXPECT_EQ(metric->value(), 0.75);
}

TEST(Auc, is_the_same_to_the_bit_however_the_examples_are_spread) {
  const Scored drawn = draw(7, 1000, 40);
  const auto whole = auc("label");
  whole->update(drawn.score_tensor(0, 1000), drawn.batch(0, 1000));
  for (const size_t workers : {2U, 3U, 7U}) {
    const auto merged = auc("label");
    for (size_t worker = workers; worker-- > 0;) {
      const auto own = merged->clone();
      const size_t begin = 1000 * worker / workers;
      const size_t end = 1000 * (worker + 1) / workers;
      own->update(drawn.score_tensor(begin, end), drawn.batch(begin, end));
      merged->merge(own->counters());
    }
    EXPECT_EQ(merged->value(), whole->value());
    EXPECT_EQ(merged->counters(), whole->counters());
  }
}

TEST(Auc, stays_small_where_scores_repeat) {
  const auto metric = auc("label");
  const torch::Tensor scores = torch::arange(100000, torch::kDouble).remainder(10);
  const torch::Tensor classes = torch::arange(100000, torch::kLong).remainder(2);
  for (int i = 0; i < 25; ++i) metric->update(scores, labels(classes));
  EXPECT_EQ(metric->counters().size(), 30U);
  EXPECT_NEAR(*metric->value(), 0.6, 1e-12);  // the odd scores are the positives: 15 of 25 pairs
}

TEST(Auc, takes_scores_and_pairs_of_logits) {
  const torch::Tensor logits = torch::randn({50, 2}, torch::kDouble);
  const torch::Tensor classes = torch::randint(0, 2, {50}, torch::kLong);
  const auto pairs = auc("label");
  pairs->update(logits, labels(classes));
  const auto column = auc("label");
  column->update((logits.select(1, 1) - logits.select(1, 0)).unsqueeze(1), labels(classes.to(torch::kFloat)));
  EXPECT_EQ(pairs->value(), column->value());
}

TEST(Auc, has_no_value_without_both_classes) {
  const auto metric = auc("label");
  metric->update(torch::tensor({0.1, 0.2}), labels(torch::tensor({1, 1})));
  EXPECT_EQ(metric->value(), std::nullopt);
  metric->update(torch::tensor({0.15}), labels(torch::tensor({0})));
  EXPECT_EQ(metric->value(), 0.5);
}

TEST(Auc, ranks_infinite_scores_and_both_zeros) {
  const auto metric = auc("label");
  metric->update(torch::tensor({-INFINITY, -0.0F, 0.0F, INFINITY}), labels(torch::tensor({0, 0, 1, 1})));
  EXPECT_EQ(metric->value(), 0.875);
}

TEST(Auc, refuses_what_has_no_rank) {
  const auto metric = auc("label");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("1 of 2 predictions are NaN"), [&] {
    metric->update(torch::tensor({0.0, std::nan("")}), labels(torch::tensor({0, 1})));
  });
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("1 of 2 labels in 'label' are not 0, 1 or missing (NaN)"), [&] {
                 metric->update(torch::zeros({2}), labels(torch::tensor({0, 2})));
               });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("[2, 3]"), [&] {
    metric->update(torch::zeros({2, 3}), labels(torch::tensor({0, 1})));
  });
  EXPECT_EQ(metric->value(), std::nullopt);
}

TEST(Metrics, leave_out_examples_whose_label_is_missing) {
  const float missing = std::nanf("");
  const torch::Tensor label = torch::tensor({1.F, missing, 0.F, missing, 1.F});
  const torch::Tensor prediction = torch::tensor({2.F, 3.F, 1.F, -7.F, -1.F});
  const auto value_of = [&](const MetricPtr& metric) {
    metric->update(prediction, labels(label));
    metric->update(prediction.narrow(0, 1, 1), labels(label.narrow(0, 1, 1)));  // no label at all
    return metric->value();
  };
  EXPECT_DOUBLE_EQ(*value_of(accuracy("label")), 1.0 / 3);
  EXPECT_DOUBLE_EQ(*value_of(mse("label")), (1.0 + 1.0 + 4.0) / 3);
  EXPECT_DOUBLE_EQ(*value_of(auc("label")), 0.5);
  const auto nothing = mse("label");
  nothing->update(prediction.narrow(0, 1, 1), labels(label.narrow(0, 1, 1)));
  EXPECT_EQ(nothing->value(), std::nullopt);
}

}  // namespace
}  // namespace tutti::metrics::metrics_test
