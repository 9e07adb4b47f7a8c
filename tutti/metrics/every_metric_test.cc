#include <cmath>

#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/inputs.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

// Tests of all metrics: weights, parts, masks, errors and reasons.
namespace tutti::metrics::every_metric_test {
namespace {

using testing::HasSubstr;

std::vector<std::optional<double>> values_of(const List& list) {
  std::vector<std::optional<double>> values;
  for (const MetricPtr& metric : list) values.push_back(metric->value());
  return values;
}

TEST(EveryMetric, has_the_same_bits_in_any_order_and_number_of_parts) {
  for (const std::string weights : {"", "weight"}) {
    const TestExamples examples = drawn_examples(3, 700);
    const List whole = all_metrics(weights);
    for (const MetricPtr& metric : whole) examples.update(*metric);
    for (const int parts : {1, 2, 3, 4}) {
      const List merged = all_metrics(weights);
      count_in_parts(examples, merged, parts, static_cast<uint64_t>(parts));
      for (size_t i = 0; i < whole.size(); ++i) {
        ASSERT_TRUE(whole[i]->value()) << whole[i]->name() << ": " << whole[i]->reason();
        EXPECT_EQ(merged[i]->value(), whole[i]->value()) << whole[i]->name() << " in " << parts;
        EXPECT_EQ(merged[i]->name(), whole[i]->name());
      }
    }
  }
}

TEST(EveryMetric, knows_the_columns_that_it_reads) {
  const TestExamples examples = drawn_examples(3, 20);
  for (const std::string weights : {"", "weight"}) {
    for (const MetricPtr& metric : all_metrics(weights)) {
      std::vector<std::string> read = metric->columns();
      std::erase(read, "");
      require_columns({metric}, read);
      // The metric needs these columns and no others.
      Batch::Tensors tensors;
      for (const std::string& column : read) tensors.emplace_back(column, examples.batch[column]);
      if (tensors.empty()) tensors.emplace_back("other", examples.batch["label"]);
      metric->update(examples.prediction, Batch(tensors));
      for (const std::string& column : read) {
        std::vector<std::string> others = read;
        std::erase(others, column);
        expect_error(
            ErrorKind::InvalidArgument,
            testing::AllOf(HasSubstr(metric->name() + ": "), HasSubstr("no column '" + column + "'")),
            [&] { require_columns({metric}, others); });
      }
    }
  }
}

TEST(EveryMetric, counts_an_example_of_weight_two_as_two_examples) {
  const TestExamples once = drawn_examples(5, 300);
  std::vector<int64_t> twice;
  const torch::Tensor weights = torch::zeros({300}, torch::kLong);
  for (int64_t i = 0; i < 300; ++i) {
    weights[i] = i % 3;
    for (int64_t copy = 0; copy < i % 3; ++copy) twice.push_back(i);
  }
  Batch::Tensors tensors = once.batch.tensors();
  tensors.emplace_back("times", weights.reshape({300, 1}));
  const TestExamples weighted{once.prediction, Batch(tensors)};
  const List by_weight = all_metrics("times");
  const List by_copies = all_metrics("");
  for (size_t i = 0; i < by_weight.size(); ++i) {
    if (by_weight[i]->name().starts_with("ndcg")) continue;  // two documents have two ranks
    weighted.update(*by_weight[i]);
    once.at(as_rows(twice)).update(*by_copies[i]);
    EXPECT_NEAR(*by_weight[i]->value(), *by_copies[i]->value(), 1e-14) << by_weight[i]->name();
  }
}

TEST(EveryMetric, ignores_all_of_an_example_whose_weight_is_0) {
  TestExamples examples = drawn_examples(9, 200);
  const torch::Tensor masked = examples.batch["weight"].eq(0);
  ASSERT_GT(masked.sum().item<int64_t>(), 10);
  const TestExamples rest = examples.at(masked.logical_not().nonzero().squeeze(1));
  examples.prediction.masked_fill_(masked, std::nan(""));
  examples.batch["label"].masked_fill_(masked, -7);
  examples.batch["relevance"].masked_fill_(masked, -7);
  const List with = all_metrics("weight");
  const List without = all_metrics("weight");
  for (size_t i = 0; i < with.size(); ++i) {
    examples.update(*with[i]);
    rest.update(*without[i]);
    EXPECT_EQ(with[i]->value(), without[i]->value()) << with[i]->name();
  }
}

TEST(EveryMetric, ignores_an_example_whose_label_is_missing) {
  TestExamples examples = drawn_examples(10, 200);
  const torch::Tensor missing = torch::arange(200).remainder(5).eq(2);
  const TestExamples rest = examples.at(missing.logical_not().nonzero().squeeze(1));
  examples.prediction.masked_fill_(missing, std::nan(""));
  examples.batch["label"].masked_fill_(missing, std::nan(""));
  examples.batch["relevance"].masked_fill_(missing, std::nan(""));
  for (const std::string weights : {"", "weight"}) {
    const List with = all_metrics(weights);
    const List without = all_metrics(weights);
    for (size_t i = 0; i < with.size(); ++i) {
      if (with[i]->name() == "mean") continue;  // it has no label
      examples.update(*with[i]);
      rest.update(*without[i]);
      EXPECT_EQ(with[i]->value(), without[i]->value()) << with[i]->name();
    }
  }
}

TEST(EveryMetric, has_no_value_but_a_reason_if_all_is_masked) {
  const TestExamples drawn = drawn_examples(11, 20);
  Batch::Tensors tensors = drawn.batch.tensors();
  tensors.emplace_back("none", torch::zeros({20}, torch::kBool));
  const TestExamples examples{drawn.prediction, Batch(tensors)};
  for (const MetricPtr& metric : all_metrics("none")) {
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    EXPECT_NE(metric->reason(), "") << metric->name();
    examples.update(*metric);
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    EXPECT_THAT(metric->reason(), HasSubstr("weight above 0 in 'none'")) << metric->name();
    metric->merge(metric->clone()->counters());
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
  }
  for (const MetricPtr& metric : all_metrics("")) {
    metric->update(torch::zeros({0}), Batch({{"label", torch::zeros({0})}}));
    EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    EXPECT_THAT(metric->reason(), testing::StartsWith("no ")) << metric->name();
  }
}

// 30 doublings make counts of more than 2^38, which float32 counters would have lost.
TEST(EveryMetric, counts_beyond_32_bits) {
  const TestExamples examples = drawn_examples(13, 300);
  for (const std::string weights : {"", "weight"}) {
    for (const MetricPtr& metric : all_metrics(weights)) {
      if (metric->name().find("group") != std::string::npos || metric->name().starts_with("ndcg")) continue;
      if (!weights.empty() && (metric->name() == "auc" || metric->name() == "average_precision")) continue;
      examples.update(*metric);
      const double once = metric->value().value();
      for (int i = 0; i < 30; ++i) metric->merge(metric->counters());
      EXPECT_NEAR(metric->value().value(), once, 1e-15) << metric->name();
      examples.update(*metric);
      EXPECT_NEAR(metric->value().value(), once, 1e-15) << metric->name();
    }
  }
}

TEST(EveryMetric, starts_anew_when_reset_or_cloned) {
  const TestExamples first = drawn_examples(14, 100);
  const TestExamples second = drawn_examples(15, 100);
  for (const std::string weights : {"", "weight"}) {
    for (const MetricPtr& metric : all_metrics(weights)) {
      first.update(*metric);
      const auto clone = metric->clone();
      EXPECT_EQ(clone->value(), std::nullopt) << metric->name();
      EXPECT_EQ(clone->name(), metric->name());
      metric->reset();
      EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
      second.update(*metric);
      second.update(*clone);
      EXPECT_TRUE(metric->value()) << metric->name();
      EXPECT_EQ(metric->value(), clone->value()) << metric->name();
    }
  }
}

TEST(EveryMetric, refuses_bad_weights_and_counts_nothing_of_their_batch) {
  const TestExamples drawn = drawn_examples(16, 20);
  for (const double bad : {-0.5, std::nan(""), static_cast<double>(INFINITY)}) {
    const TestExamples examples = drawn.at(torch::arange(20));
    examples.batch["weight"][19] = bad;
    for (const MetricPtr& metric : all_metrics("weight")) {
      expect_error(ErrorKind::InvalidArgument,
                   testing::AllOf(HasSubstr(metric->name()), HasSubstr("1 "),
                                  HasSubstr("weights in 'weight' are negative or not finite")),
                   [&] { examples.update(*metric); });
      EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    }
  }
  for (const MetricPtr& metric : all_metrics("weights"))
    expect_error(ErrorKind::InvalidArgument, HasSubstr("weights"), [&] { drawn.update(*metric); });
}

TEST(EveryMetric, refuses_predictions_that_are_not_numbers_or_have_another_shape) {
  const TestExamples drawn = drawn_examples(17, 20);
  for (const std::string weights : {"", "weight"}) {
    for (const MetricPtr& metric : all_metrics(weights)) {
      if (metric->name() == "mean") continue;  // of a function, whose NaN is the mean's
      TestExamples examples = drawn.at(torch::arange(20));
      examples.batch["weight"].fill_(1);
      examples.prediction[7] = std::nan("");
      expect_error(ErrorKind::InvalidArgument,
                   testing::AllOf(HasSubstr(metric->name() + ": "), HasSubstr("predictions are NaN")),
                   [&] { examples.update(*metric); });
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{19}, {20, 3, 2}, {1, 20}, {21}, {10, 2}, {}}) {
        examples.prediction = torch::zeros(shape, torch::kDouble);
        EXPECT_THROW(examples.update(*metric), Error) << metric->name() << examples.prediction.sizes();
      }
      EXPECT_EQ(metric->value(), std::nullopt) << metric->name();
    }
  }
}

TEST(Mean, does_not_hide_a_NaN_unless_it_is_masked) {
  const auto each = [](const torch::Tensor& prediction, const Batch&) { return prediction; };
  const auto metric = mean("m", each, {.weights = "w"});
  const torch::Tensor values = torch::tensor({1.0, std::nan(""), 4.0});
  metric->update(values, Batch({{"w", torch::tensor({1, 0, 3})}}));
  EXPECT_EQ(metric->value(), 13.0 / 4);
  metric->update(values, Batch({{"w", torch::tensor({1, 1, 3})}}));
  EXPECT_TRUE(std::isnan(metric->value().value()));
}

TEST(Accuracy, gives_all_positions_the_weight_of_their_example) {
  const torch::Tensor prediction = torch::zeros({3, 2, 5});
  prediction.select(1, 1).fill_(1);
  const torch::Tensor label = torch::ones({3, 5}, torch::kLong);
  label[0].fill_(0);
  label[2].fill_(9);  // masked
  const Batch batch({{"label", label}, {"w", torch::tensor({3.0, 1.0, 0.0})}});
  const auto metric = accuracy("label", {.weights = "w"});
  metric->update(prediction, batch);
  EXPECT_EQ(metric->value(), 0.25);
  const torch::Tensor one_hot = torch::one_hot(label.clamp_max(1), 2).transpose(1, 2).contiguous();
  one_hot[2].fill_(5);
  metric->reset();
  metric->update(prediction, Batch({{"label", one_hot}, {"w", torch::tensor({3.0, 1.0, 0.0})}}));
  EXPECT_EQ(metric->value(), 0.25);
}

TEST(ListOfMetrics, is_sent_as_finite_numbers) {
  const torch::Tensor scores = torch::tensor({-INFINITY, -0.0F, 0.0F, INFINITY});
  const Batch batch({{"label", torch::tensor({0, 0, 1, 1})}, {"w", torch::ones({4})}});
  const List sent = {mse("label"), auc("label"), auc("label", {.weights = "w", .name = "weighted"})};
  for (const MetricPtr& metric : sent) metric->update(scores, batch);
  const std::vector<double> counters = counters_of(sent);
  for (const double counter : counters) EXPECT_TRUE(std::isfinite(counter));
  const List received = {sent[0]->clone(), sent[1]->clone(), sent[2]->clone()};
  merge(received, counters);
  EXPECT_EQ(values_of(received), values_of(sent));
  EXPECT_EQ(received[1]->value(), 0.875);
  EXPECT_EQ(received[2]->value(), 0.875);
  EXPECT_THROW(merge({received[0]}, counters), Error);
  EXPECT_THROW(merge(received, std::span(counters).first(counters.size() - 1)), Error);
  EXPECT_THROW(merge(received, std::vector<double>{-1}), Error);
  merge(List{}, counters_of({}));
}

}  // namespace
}  // namespace tutti::metrics::every_metric_test
