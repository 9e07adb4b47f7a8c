#include <cmath>
#include <map>

#include <torch/types.h>

#include "tutti/base/test_errors.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

namespace tutti::metrics::groups_test {
namespace {

using testing::HasSubstr;

Batch grouped(const torch::Tensor& labels, const torch::Tensor& groups) {
  return Batch({{"label", labels}, {"user", groups}});
}

TEST(GroupAuc, is_the_mean_of_the_areas_of_the_groups) {
  const TestExamples examples = drawn_examples(51, 400, 30);
  for (const std::string weights : {"", "weight"}) {
    double areas = 0;
    double groups = 0;
    double weighted_areas = 0;
    double all_weights = 0;
    for (int64_t i = 0; i < 30; ++i) {
      const torch::Tensor is_member = examples.batch["group"].eq((int64_t{1} << 60) + 3 * i);
      const TestExamples group = examples.at(is_member.nonzero().squeeze(1));
      const auto area = auc("label", {.weights = weights});
      group.update(*area);
      if (!area->value()) continue;
      const double weight =
          weights.empty() ? static_cast<double>(group.size()) : group.batch["weight"].sum().item<double>();
      areas += *area->value();
      groups += 1;
      weighted_areas += *area->value() * weight;
      all_weights += weight;
    }
    ASSERT_GT(groups, 20);
    const auto by_groups = group_auc("label", "group", {.weights = weights, .by = By::Groups});
    const auto by_examples = group_auc("label", "group", {.weights = weights});
    examples.update(*by_groups);
    examples.update(*by_examples);
    EXPECT_NEAR(by_groups->value().value(), areas / groups, 1e-13);
    EXPECT_NEAR(by_examples->value().value(), weighted_areas / all_weights, 1e-13);
  }
}

TEST(GroupAuc, leaves_out_groups_of_one_class) {
  const auto metric = group_auc("label", "user");
  metric->update(torch::tensor({0.1, 0.2, 0.3, 0.9, 0.5}),
                 grouped(torch::tensor({0, 1, 0, 1, 1}), torch::tensor({7, 7, -8, 9, 9})));
  EXPECT_EQ(metric->value(), 1.0);
  metric->reset();
  metric->update(torch::tensor({0.1, 0.2, 0.3}), grouped(torch::tensor({0, 0, 1}), torch::tensor({7, 7, 8})));
  EXPECT_EQ(metric->value(), std::nullopt);
  EXPECT_EQ(metric->reason(), "each of the 2 groups has examples of one class only");
  metric->reset();
  metric->update(torch::tensor({0.1}), grouped(torch::tensor({0}), torch::tensor({7})));
  EXPECT_EQ(metric->reason(), "the only group has examples of one class only");
}

TEST(GroupAuc, tells_all_64_bits_of_groups_apart_also_after_a_merge) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const torch::Tensor users = torch::tensor({kMost, kMost, kMost - 1, kMost - 1, kLeast, kLeast, kLeast + 1,
                                             kLeast + 1, int64_t{-1}, int64_t{-1}, int64_t{0}, int64_t{0}},
                                            torch::kLong);
  const torch::Tensor scores = torch::arange(12, torch::kDouble).mul(5).remainder(11);
  const torch::Tensor label = torch::arange(12).remainder(2);
  const auto metric = group_auc("label", "user", {.by = By::Groups});
  metric->update(scores, grouped(label, users));
  double right = 0;
  for (int64_t i = 0; i < 12; i += 2)
    right += scores[i].item<double>() < scores[i + 1].item<double>() ? 1 : 0;
  EXPECT_EQ(metric->value(), right / 6);
  const auto merged = metric->clone();
  merged->merge(metric->counters());
  EXPECT_EQ(merged->value(), metric->value());
  EXPECT_EQ(merged->counters(), metric->counters());
}

TEST(GroupAuc, takes_whole_numbers_of_any_type_as_groups) {
  const torch::Tensor scores = torch::tensor({0.1, 0.2, 0.4, 0.3});
  const torch::Tensor label = torch::tensor({0, 1, 0, 1});
  const torch::Tensor users = torch::tensor({3, 3, 5, 5});
  for (const auto type : {torch::kLong, torch::kInt, torch::kShort, torch::kByte, torch::kFloat,
                          torch::kDouble, torch::kHalf}) {
    const auto metric = group_auc("label", "user");
    metric->update(scores, grouped(label, users.to(type).unsqueeze(1)));
    EXPECT_EQ(metric->value(), 0.5) << type;
  }
  for (const torch::Tensor& bad :
       {torch::tensor({3.0, 3.0, 5.5, 5.0}), torch::tensor({3.0, 3.0, std::nan(""), 5.0}),
        torch::tensor({3.0F, 3.0F, 20000000.0F, 5.0F}),
        torch::tensor({1.0, 1.0, 1e300, 1.0}, torch::kDouble)})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("group_auc: the groups in 'user' have to be whole"),
                 [&] { group_auc("label", "user")->update(scores, grouped(label, bad)); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("expected one number for each of the 4 examples"), [&] {
    group_auc("label", "user")->update(scores, grouped(label, users.unsqueeze(1).expand({4, 2})));
  });
}

// Sums over all orders of tied documents, rank by rank.
double ndcg_by_definition(const std::vector<double>& scores, const std::vector<double>& gains, size_t at) {
  const auto discount = [at](size_t rank) {
    return at > 0 && rank >= at ? 0 : 1 / std::log2(static_cast<double>(rank) + 2);
  };
  double found = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    size_t above = 0;
    size_t ties = 0;
    for (const double other : scores) {
      above += other > scores[i] ? 1 : 0;
      ties += other == scores[i] ? 1 : 0;
    }
    for (size_t rank = above; rank < above + ties; ++rank)
      found += gains[i] * discount(rank) / static_cast<double>(ties);
  }
  std::vector<double> best = gains;
  std::sort(best.begin(), best.end(), std::greater<>());
  double most = 0;
  for (size_t i = 0; i < best.size(); ++i) most += best[i] * discount(i);
  return found / most;
}

TEST(Ndcg, follows_its_definition_ties_included) {
  const TestExamples examples = drawn_examples(52, 300, 12);
  for (const int64_t at : {0, 1, 4, 1000}) {
    for (const Gain gain : {Gain::Linear, Gain::Exponential}) {
      for (const std::string weights : {"", "weight"}) {
        double sum = 0;
        for (int64_t i = 0; i < 12; ++i) {
          std::vector<double> scores;
          std::vector<double> gains;
          for (int64_t row = 0; row < 300; ++row) {
            const auto weight = weights.empty() ? 1 : examples.batch["weight"][row].item<double>();
            if (examples.batch["group"][row].item<int64_t>() != (int64_t{1} << 60) + 3 * i || weight == 0)
              continue;
            const auto relevance = examples.batch["relevance"][row].item<double>();
            scores.push_back(examples.prediction[row].item<double>());
            gains.push_back(weight * (gain == Gain::Linear ? relevance : std::pow(2, relevance) - 1));
          }
          sum += ndcg_by_definition(scores, gains, static_cast<size_t>(at));
        }
        const auto metric = ndcg("relevance", "group", {.weights = weights, .at = at, .gain = gain});
        examples.update(*metric);
        EXPECT_NEAR(metric->value().value(), sum / 12, 1e-12) << at;
      }
    }
  }
}

TEST(Ndcg, is_1_for_the_best_order_and_has_a_name_with_the_ranks) {
  const auto metric = ndcg("label", "user", {.at = 10});
  EXPECT_EQ(metric->name(), "ndcg@10");
  EXPECT_EQ(ndcg("label", "user")->name(), "ndcg");
  metric->update(torch::tensor({3.0, 2.0, 1.0}), grouped(torch::tensor({4, 2, 0}), torch::tensor({1, 1, 1})));
  EXPECT_EQ(metric->value(), 1.0);
}

TEST(Ndcg, leaves_out_groups_without_gain_and_says_so) {
  const auto metric = ndcg("label", "user");
  metric->update(torch::tensor({3.0, 2.0}), grouped(torch::tensor({0, 0}), torch::tensor({1, 2})));
  EXPECT_EQ(metric->value(), std::nullopt);
  EXPECT_EQ(metric->reason(), "each of the 2 groups has no example with a gain");
  metric->update(torch::tensor({3.0, 2.0}), grouped(torch::tensor({0, 1}), torch::tensor({3, 3})));
  EXPECT_NEAR(metric->value().value(), 1 / std::log2(3.0), 1e-15);
}

TEST(Ndcg, refuses_relevances_and_ranks_below_0) {
  for (const double bad : {-1.0, static_cast<double>(INFINITY)})
    expect_error(ErrorKind::InvalidArgument, HasSubstr("1 of 2 labels in 'label' are not relevances"), [&] {
      ndcg("label", "user")
          ->update(torch::zeros({2}), grouped(torch::tensor({1.0, bad}), torch::tensor({1, 1})));
    });
  expect_error(ErrorKind::InvalidArgument, HasSubstr(".at is -1"), [] { ndcg("label", "user", {.at = -1}); });
  expect_error(ErrorKind::InvalidArgument, HasSubstr("relevance"), [] {
    ndcg("label", "user", {.gain = Gain::Exponential})
        ->update(torch::zeros({1}), grouped(torch::tensor({2000.0}), torch::tensor({1})));
  });
}

}  // namespace
}  // namespace tutti::metrics::groups_test
