#include <cmath>
#include <random>

#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

// Tests metrics of class numbers on examples that have a class number for each token.
namespace tutti::metrics::classes_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kTexts = 40;
constexpr int64_t kTokens = 7;
constexpr int64_t kClasses = 11;

// Logits of texts (B, T, V) and class numbers (B, T), of which some are -100. "weight" has 0 for some texts.
TestExamples drawn_texts(uint64_t seed) {
  torch::manual_seed(seed);
  const torch::Tensor logits = 3 * torch::randn({kTexts, kTokens, kClasses}, torch::kDouble);
  torch::Tensor token = torch::randint(kClasses, {kTexts, kTokens}, torch::kLong);
  token = token.where(torch::rand({kTexts, kTokens}) > 0.4, logits.argmax(2));
  token.masked_fill_(torch::rand({kTexts, kTokens}) < 0.2, -100);
  const torch::Tensor weight = torch::arange(kTexts).remainder(4).to(torch::kDouble) * 0.7;
  return {logits, Batch({{"token", token}, {"weight", weight}})};
}

struct ByFormula {
  double accuracy;
  double perplexity;
};

// The formulas in double precision, token by token.
ByFormula by_formula(const TestExamples& texts, bool is_weighted) {
  const auto logits = texts.prediction.accessor<double, 3>();
  const auto tokens = texts.batch["token"].accessor<int64_t, 2>();
  double correct = 0;
  double losses = 0;
  double all = 0;
  for (int64_t i = 0; i < texts.size(); ++i) {
    const double weight = is_weighted ? texts.batch["weight"][i].item<double>() : 1;
    for (int64_t j = 0; j < kTokens; ++j) {
      if (tokens[i][j] == -100) continue;
      double sum = 0;
      int64_t best = 0;
      for (int64_t k = 0; k < kClasses; ++k) {
        sum += std::exp(logits[i][j][k]);
        if (logits[i][j][k] > logits[i][j][best]) best = k;
      }
      all += weight;
      correct += best == tokens[i][j] ? weight : 0;
      losses += weight * (std::log(sum) - logits[i][j][tokens[i][j]]);
    }
  }
  return {correct / all, std::exp(losses / all)};
}

double value_of(const MetricPtr& metric, const torch::Tensor& prediction, const Batch& batch) {
  metric->update(prediction, batch);
  return metric->value().value();
}

TEST(TokenMetrics, count_every_token_that_is_not_ignored) {
  const TestExamples texts = drawn_texts(1);
  for (const std::string weights : {"", "weight"}) {
    const ByFormula expected = by_formula(texts, !weights.empty());
    EXPECT_NEAR(value_of(accuracy("token", {.weights = weights}), texts.prediction, texts.batch),
                expected.accuracy, 1e-14);
    EXPECT_NEAR(value_of(perplexity("token", {.weights = weights}), texts.prediction, texts.batch),
                expected.perplexity, 1e-12 * expected.perplexity);
  }
}

TEST(TokenMetrics, agree_with_the_cross_entropy_of_PyTorch) {
  const TestExamples texts = drawn_texts(2);
  const auto loss =
      torch::nn::functional::cross_entropy(texts.prediction.flatten(0, 1), texts.batch["token"].flatten());
  EXPECT_NEAR(std::log(value_of(perplexity("token"), texts.prediction, texts.batch)), loss.item<double>(),
              1e-14);
}

TEST(TokenMetrics, have_the_same_bits_in_any_order_and_number_of_parts) {
  const TestExamples drawn = drawn_texts(3);
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const TestExamples texts{drawn.prediction.to(type), drawn.batch};
    for (const std::string weights : {"", "weight"}) {
      const auto metrics = [&] {
        return List{accuracy("token", {.weights = weights}), perplexity("token", {.weights = weights})};
      };
      const List whole = metrics();
      for (const MetricPtr& metric : whole) texts.update(*metric);
      for (const int parts : {1, 2, 5}) {
        const List merged = metrics();
        count_in_parts(texts, merged, parts, static_cast<uint64_t>(parts));
        for (size_t i = 0; i < whole.size(); ++i)
          EXPECT_EQ(merged[i]->value(), whole[i]->value()) << whole[i]->name() << " in " << parts;
      }
    }
  }
}

TEST(TokenMetrics, find_the_classes_in_either_dimension) {
  const TestExamples texts = drawn_texts(4);
  const ByFormula expected = by_formula(texts, false);
  const torch::Tensor second = texts.prediction.transpose(1, 2);
  for (const std::optional<int64_t> dim : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    EXPECT_NEAR(value_of(accuracy("token", {.class_dim = dim}), second, texts.batch), expected.accuracy,
                1e-14);
    EXPECT_NEAR(value_of(perplexity("token", {.class_dim = dim}), second, texts.batch), expected.perplexity,
                1e-12 * expected.perplexity);
  }
  // A text of one token, and one token for each example.
  const Batch single({{"token", texts.batch["token"].narrow(1, 3, 1)}});
  const torch::Tensor of_single = texts.prediction.narrow(1, 3, 1);
  EXPECT_EQ(value_of(accuracy("token"), of_single, single),
            value_of(accuracy("token"), of_single.squeeze(1), single));
  EXPECT_EQ(value_of(perplexity("token"), of_single, single),
            value_of(perplexity("token"), of_single.squeeze(1), single));
  const torch::Tensor one_hot = torch::one_hot(texts.batch["token"].clamp_min(0), kClasses);
  EXPECT_EQ(
      value_of(accuracy("token", {.class_dim = -1}), texts.prediction, Batch({{"token", one_hot}})),
      value_of(accuracy("token"), texts.prediction, Batch({{"token", texts.batch["token"].clamp_min(0)}})));
}

// With as many tokens as classes, the shapes are ambiguous.
TEST(TokenMetrics, refuse_to_guess_which_dimension_has_the_classes) {
  torch::manual_seed(5);
  const torch::Tensor logits = torch::randn({3, 4, 4});
  const torch::Tensor token = logits.argmax(2);
  const Batch batch({{"token", token}});
  for (const MetricPtr& metric : List{accuracy("token"), perplexity("token")}) {
    expect_error(ErrorKind::InvalidArgument,
                 AllOf(HasSubstr(metric->name() + ": predictions of shape [3, 4, 4]"),
                       HasSubstr(".class_dim to 1, or to -1")),
                 [&] { metric->update(logits, batch); });
  }
  EXPECT_EQ(value_of(accuracy("token", {.class_dim = -1}), logits, batch), 1);
  EXPECT_EQ(value_of(accuracy("token", {.class_dim = 2}), logits, batch), 1);
  EXPECT_LT(value_of(accuracy("token", {.class_dim = 1}), logits, batch), 1);
  for (const int64_t dim : {0, 3, -3})
    expect_error(ErrorKind::InvalidArgument, HasSubstr(".class_dim is"),
                 [&] { accuracy("token", {.class_dim = dim})->update(logits, batch); });
}

TEST(TokenMetrics, ignore_the_number_that_they_are_told) {
  const TestExamples texts = drawn_texts(6);
  const torch::Tensor token = texts.batch["token"];
  const Batch bytes({{"token", token.masked_fill(token.eq(-100), 255).to(torch::kUInt8)}});
  EXPECT_EQ(value_of(accuracy("token", {.ignore = 255}), texts.prediction, bytes),
            value_of(accuracy("token"), texts.prediction, texts.batch));
  EXPECT_EQ(value_of(perplexity("token", {.ignore = 255}), texts.prediction, bytes),
            value_of(perplexity("token"), texts.prediction, texts.batch));
  for (const MetricPtr& metric : List{accuracy("token"), perplexity("token")}) {
    expect_error(ErrorKind::InvalidArgument,
                 HasSubstr("labels in 'token' are no class numbers from 0 to 10, nor -100"),
                 [&] { metric->update(texts.prediction, bytes); });
    EXPECT_EQ(metric->value(), std::nullopt) << "nothing of the batch was counted";
    metric->update(texts.prediction, Batch({{"token", torch::full_like(token, -100)}}));
    EXPECT_EQ(metric->value(), std::nullopt);
    EXPECT_THAT(metric->reason(), HasSubstr("no example has a label"));
  }
}

// Predictions for labels that are not counted may be anything.
TEST(TokenMetrics, refuse_logits_that_are_no_numbers) {
  const TestExamples texts = drawn_texts(7);
  const torch::Tensor ignored = texts.batch["token"].eq(-100).nonzero()[0];
  const torch::Tensor counted = texts.batch["token"].ge(0).nonzero()[0];
  const auto with = [&](const torch::Tensor& at, double number) {
    torch::Tensor logits = texts.prediction.clone();
    logits[at[0].item<int64_t>()][at[1].item<int64_t>()].fill_(number);
    return logits;
  };
  const double nan = std::nan("");
  for (const MetricPtr& metric : List{accuracy("token"), perplexity("token")}) {
    expect_error(ErrorKind::InvalidArgument, HasSubstr("predictions are NaN"),
                 [&] { metric->update(with(counted, nan), texts.batch); });
    const double value = value_of(metric, with(ignored, nan), texts.batch);
    metric->reset();
    EXPECT_EQ(value_of(metric, texts.prediction, texts.batch), value);
  }
  const auto metric = perplexity("token");
  expect_error(ErrorKind::InvalidArgument, HasSubstr("1 rows of predictions have an infinite logit"),
               [&] { metric->update(with(counted, INFINITY), texts.batch); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("have no dimension with the classes"), [&] {
    metric->update(torch::ones(3), Batch({{"token", torch::ones(3)}}));
  });
  // A probability of 0 for a token that occurs.
  metric->update(torch::tensor({{0.0, -static_cast<double>(INFINITY)}}),
                 Batch({{"token", torch::tensor({1})}}));
  EXPECT_EQ(metric->value(), INFINITY);
}

// The logits are converted in several pieces.
TEST(Perplexity, is_that_of_many_classes) {
  torch::manual_seed(8);
  constexpr int64_t kMany = 30000;
  const torch::Tensor logits = torch::randn({40, 5, kMany});
  const torch::Tensor token = torch::randint(kMany, {40, 5}, torch::kLong);
  const auto loss =
      torch::nn::functional::cross_entropy(logits.to(torch::kDouble).flatten(0, 1), token.flatten());
  const double value = value_of(perplexity("token"), logits, Batch({{"token", token}}));
  EXPECT_NEAR(std::log(value), loss.item<double>(), 1e-12);
}

}  // namespace
}  // namespace tutti::metrics::classes_test
