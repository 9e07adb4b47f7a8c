#include <cmath>

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/test_errors.h"
#include "tutti/base/test_folder.h"
#include "tutti/base/test_oracle.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/test_metrics.h"

namespace tutti::metrics::oracle_test {
namespace {

using Json = nlohmann::json;

std::vector<double> numbers_of(const torch::Tensor& tensor) {
  const torch::Tensor all = tensor.to(torch::kDouble).contiguous();
  const auto* numbers = static_cast<const double*>(all.data_ptr());
  return {numbers, numbers + all.numel()};
}

TEST(EveryMetric, agrees_with_scikit_learn) {
  TUTTI_NEEDS_ORACLES();
  constexpr int64_t kExamples = 2000;
  const TestExamples drawn = drawn_examples(61, kExamples, 40);
  torch::manual_seed(1);
  const torch::Tensor classes = torch::rand({kExamples, 4}, torch::kDouble).softmax(1);
  Batch::Tensors tensors = drawn.batch.tensors();
  tensors.emplace_back("class", torch::arange(kExamples).remainder(4));
  const Batch batch(tensors);
  Json data = {{"prediction", numbers_of(drawn.prediction)}, {"classes", Json::array()}};
  for (const auto& [name, tensor] : batch.tensors())
    data[name] = numbers_of(name == "group" ? tensor - (int64_t{1} << 60) : tensor);
  for (int64_t i = 0; i < kExamples; ++i) data["classes"].push_back(numbers_of(classes[i]));
  const TestFolder folder;
  const OracleAnswer answer = ask_oracle("check_metrics.py", {folder.write("data.json", data.dump())});
  ASSERT_EQ(answer.status, 0) << answer.output;
  const Json answers = Json::parse(answer.output);
  const Json& expected = answers.at("values");
  size_t compared = 0;
  for (const size_t with_weights : {0U, 1U}) {
    const std::string weights = with_weights == 1 ? "weight" : "";
    List list = all_metrics(weights);
    list.push_back(log_loss("class", {.weights = weights, .name = "classes"}));
    list.push_back(accuracy("class", {.weights = weights, .name = "class"}));
    for (const MetricPtr& metric : list) {
      if (!expected.contains(metric->name())) continue;
      metric->update(metric->name().starts_with("class") ? classes : drawn.prediction, batch);
      EXPECT_NEAR(metric->value().value(), expected.at(metric->name()).at(with_weights).get<double>(), 1e-12)
          << metric->name() << " " << weights;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 2 * expected.size());

  const Json& curves = answers.at("curves");
  for (const size_t with_weights : {0U, 1U}) {
    const std::string weights = with_weights == 1 ? "weight" : "";
    for (const MetricPtr& metric :
         List{auc("label", {.weights = weights}), average_precision("label", {.weights = weights})}) {
      drawn.update(*metric);
      const std::vector<CurvePoint> points = curve_points(*metric);
      ASSERT_EQ(points.size(), curves.at("precision").at(with_weights).size());
      const auto at = [&](const char* axis, size_t i) {
        return curves.at(axis).at(with_weights).at(i).get<double>();
      };
      for (size_t i = 0; i < points.size(); ++i) {
        EXPECT_NEAR(points[i].precision(), at("precision", i), 1e-12) << metric->name() << " " << i;
        EXPECT_NEAR(points[i].recall(), at("recall", i), 1e-12) << metric->name() << " " << i;
        EXPECT_NEAR(points[i].false_positive_rate(), at("false_positive_rate", i), 1e-12) << i;
        // Its thresholds are the least scores that are above ours.
        EXPECT_EQ(points[i].threshold, i == 0 ? -INFINITY : at("threshold", i - 1)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tutti::metrics::oracle_test
