#include <cmath>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

namespace tutti::metrics::quotients_test {
namespace {

using testing::HasSubstr;

Batch with_labels(const torch::Tensor& labels) { return Batch({{"label", labels}}); }

TEST(PrecisionAndRecall, follow_their_definitions) {
  const torch::Tensor scores = torch::tensor({2.0, 1.0, 0.5, 0.0, -1.0, -2.0});
  const Batch batch(
      {{"label", torch::tensor({1, 0, 1, 1, 0, 1})}, {"w", torch::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0})}});
  const auto value = [&](const MetricPtr& metric) {
    metric->update(scores, batch);
    return metric->value().value();
  };
  EXPECT_EQ(value(precision("label")), 2.0 / 3);
  EXPECT_EQ(value(recall("label")), 2.0 / 4);
  EXPECT_EQ(value(precision("label", {.threshold = 0.5})), 1.0 / 2);
  EXPECT_EQ(value(recall("label", {.threshold = -5})), 1);
  EXPECT_EQ(value(precision("label", {.weights = "w"})), 4.0 / 6);
  EXPECT_EQ(value(recall("label", {.weights = "w"})), 4.0 / 14);
}

// A float32 of 0.1 is greater than the double 0.1.
TEST(PrecisionAndRecall, use_the_threshold_as_accuracy_does) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const torch::Tensor scores = torch::tensor({0.1, 0.1, 0.3}, torch::kDouble).to(type);
    const Batch batch = with_labels(torch::tensor({0, 0, 1}));
    for (const MetricPtr& metric :
         {accuracy("label", {.threshold = 0.1}), precision("label", {.threshold = 0.1}),
          recall("label", {.threshold = 0.1})}) {
      metric->update(scores, batch);
      EXPECT_EQ(metric->value(), 1) << metric->name() << " " << type;
    }
  }
  // Two columns are answered alike, too.
  const torch::Tensor logits = torch::tensor({{1.0, 1.0}, {0.0, 2.0}, {3.0, 1.0}});
  for (const MetricPtr& metric : {accuracy("label"), precision("label"), recall("label")}) {
    metric->update(logits, with_labels(torch::tensor({0, 1, 0})));
    EXPECT_EQ(metric->value(), 1) << metric->name();
  }
}

TEST(PrecisionAndRecall, say_what_is_missing) {
  const auto none_predicted = precision("label");
  none_predicted->update(torch::tensor({-1.0, -2.0}), with_labels(torch::tensor({1, 0})));
  EXPECT_EQ(none_predicted->value(), std::nullopt);
  EXPECT_EQ(none_predicted->reason(), "no example is predicted to be of class 1");
  const auto none_positive = recall("label");
  none_positive->update(torch::tensor({1.0, -2.0}), with_labels(torch::tensor({0, 0})));
  EXPECT_EQ(none_positive->value(), std::nullopt);
  EXPECT_EQ(none_positive->reason(), "no example is of class 1");
  none_positive->reset();
  EXPECT_EQ(none_positive->reason(), "no example has a label");
}

TEST(Calibration, is_the_predicted_share_of_the_actual_one) {
  const auto metric = calibration("label");
  metric->update(torch::tensor({0.5, 0.25, 0.75, 0.0}), with_labels(torch::tensor({1, 0, 1, 0})));
  EXPECT_EQ(metric->value(), 0.75);
  metric->reset();
  metric->update(torch::tensor({0.5}), with_labels(torch::tensor({0})));
  EXPECT_EQ(metric->value(), std::nullopt);
  EXPECT_EQ(metric->reason(), "no example is of class 1");
  expect_error(ErrorKind::InvalidArgument,
               HasSubstr("calibration: 2 of 3 predictions are no probabilities in [0, 1] (the first is 1.5, "
                         "in example 1 of the batch)"),
               [&] {
                 metric->update(torch::tensor({0.5, 1.5, -2.0}), with_labels(torch::tensor({0, 1, 1})));
               });
}

TEST(LogLoss, is_the_mean_cross_entropy) {
  const TestExamples examples = drawn_examples(31, 300);
  double sum = 0;
  double weighted = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const auto p = std::min(std::max(examples.prediction[i].item<double>(), 0x1p-52), 1 - 0x1p-52);
    const bool is_positive = examples.batch["label"][i].item<double>() == 1;
    const double loss = -std::log(is_positive ? p : 1 - p);
    sum += loss;
    weighted += loss * examples.batch["weight"][i].item<double>();
  }
  const auto metric = log_loss("label");
  examples.update(*metric);
  EXPECT_NEAR(metric->value().value(), sum / 300, 1e-13);
  const auto of_weights = log_loss("label", {.weights = "weight"});
  examples.update(*of_weights);
  EXPECT_NEAR(of_weights->value().value(), weighted / examples.batch["weight"].sum().item<double>(), 1e-13);
}

TEST(NormalizedEntropy, is_the_log_loss_divided_by_that_of_the_base_rate) {
  const TestExamples examples = drawn_examples(33, 400);
  for (const std::string weights : {"", "weight"}) {
    const torch::Tensor weight =
        weights.empty() ? torch::ones({400}, torch::kDouble) : examples.batch["weight"];
    const torch::Tensor label = examples.batch["label"];
    const double rate = ((weight * label).sum() / weight.sum()).item<double>();
    const double base = -(rate * std::log(rate) + (1 - rate) * std::log(1 - rate));
    const auto loss = log_loss("label", {.weights = weights});
    const auto metric = normalized_entropy("label", {.weights = weights});
    examples.update(*loss);
    examples.update(*metric);
    EXPECT_NEAR(metric->value().value(), loss->value().value() / base, 1e-13);
  }
  const auto of_base_rate = normalized_entropy("label");
  of_base_rate->update(torch::full({4}, 0.25, torch::kDouble), with_labels(torch::tensor({0, 0, 1, 0})));
  EXPECT_NEAR(of_base_rate->value().value(), 1, 1e-15);
}

TEST(NormalizedEntropy, has_no_value_without_examples_of_both_classes) {
  const auto metric = normalized_entropy("label");
  EXPECT_EQ(metric->name(), "normalized_entropy");
  metric->update(torch::tensor({0.5, 0.7}), with_labels(torch::tensor({0, 0})));
  EXPECT_EQ(metric->value(), std::nullopt);
  EXPECT_EQ(metric->reason(), "all 2 examples are of class 0");
  metric->update(torch::tensor({0.5}), with_labels(torch::tensor({1})));
  EXPECT_TRUE(metric->value());
  expect_error(ErrorKind::InvalidArgument, HasSubstr("predictions are no probabilities"),
               [&] { metric->update(torch::tensor({1.5}), with_labels(torch::tensor({1}))); });
}

TEST(LogLoss, of_two_classes_is_that_of_class_1) {
  const TestExamples examples = drawn_examples(32, 100);
  const auto single = log_loss("label");
  examples.update(*single);
  const torch::Tensor both = torch::stack({1 - examples.prediction, examples.prediction}, 1);
  const torch::Tensor label = examples.batch["label"];
  const torch::Tensor one_hot = torch::one_hot(label.to(torch::kLong), 2).to(torch::kFloat);
  for (const torch::Tensor& labels : {label, label.to(torch::kInt), label.unsqueeze(1), one_hot}) {
    const auto metric = log_loss("label");
    metric->update(both, with_labels(labels));
    EXPECT_NEAR(metric->value().value(), single->value().value(), 1e-13);
  }
}

TEST(LogLoss, is_finite_for_certain_errors_and_0_for_certain_truths) {
  const auto metric = log_loss("label");
  metric->update(torch::tensor({0.0F, 1.0F}), with_labels(torch::tensor({1, 0})));
  EXPECT_NEAR(metric->value().value(), 23 * std::log(2.0), 1e-6);
  metric->reset();
  metric->update(torch::tensor({0.0, 1.0}, torch::kDouble), with_labels(torch::tensor({1, 0})));
  EXPECT_NEAR(metric->value().value(), 52 * std::log(2.0), 1e-12);
  metric->reset();
  metric->update(torch::tensor({0.0, 1.0}, torch::kDouble), with_labels(torch::tensor({0, 1})));
  EXPECT_NEAR(metric->value().value(), 0, 1e-15);
}

TEST(LogLoss, refuses_what_is_no_probability_or_no_class) {
  const auto metric = log_loss("label");
  const torch::Tensor good = torch::full({2, 3}, 1.0 / 3);
  torch::Tensor beyond = good.clone();
  beyond[1][2] = 1.5;
  torch::Tensor none = good.clone();
  none[0][0] = std::nan("");
  for (const torch::Tensor& bad : {beyond, none})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("1 rows of predictions have NaN or numbers outside"),
                 [&] {
                   metric->update(bad, with_labels(torch::tensor({0, 1})));
                 });
  for (const double bad : {3.0, -1.0, 0.5})
    expect_error(ErrorKind::InvalidArgument,
                 HasSubstr("1 labels in 'label' are no class numbers from 0 to 2"), [&] {
                   metric->update(good, with_labels(torch::tensor({0.0, bad})));
                 });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("do not match"), [&] {
    metric->update(good, with_labels(torch::zeros({2, 2})));
  });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("labels in 'label' are not 0, 1"), [&] {
    metric->update(torch::zeros({2}), with_labels(torch::tensor({0, 2})));
  });
  EXPECT_EQ(metric->value(), std::nullopt);
  metric->update(good, with_labels(torch::tensor({std::nan(""), 2.0})));
  EXPECT_NEAR(metric->value().value(), std::log(3.0), 1e-7);
}

}  // namespace
}  // namespace tutti::metrics::quotients_test
