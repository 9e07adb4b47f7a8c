#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/kernels/same_functions.h"
#include "tutti/metrics/metrics.h"
#include "tutti/metrics/ranking.h"
#include "tutti/metrics/running_mean.h"

// Means over groups of examples, such as the examples of one user or one query.
namespace tutti::metrics {
namespace {

// The value of a group and how much it counts in the mean; nullopt: the group is left out.
struct GroupValue {
  double value;
  double weight;
};
using GroupRule = std::function<std::optional<GroupValue>(std::span<const Example>)>;

class GroupMean final : public Metric {
 public:
  // `lacks` describes a group that is left out.
  GroupMean(Expected expected, GroupRule rule, std::string lacks)
      : expected_(std::move(expected)),
        rule_(std::move(rule)),
        lacks_(std::move(lacks)),
        examples_(expected_) {}

  const std::string& name() const override { return expected_.metric; }
  std::vector<std::string> columns() const override { return columns_of(expected_); }
  void update(const torch::Tensor& prediction, const Batch& batch) override {
    examples_.add(examples_of(expected_, prediction, batch));
  }
  std::vector<double> counters() const override { return examples_.counters(); }
  void merge(std::span<const double> counters) override { examples_.merge(counters); }

  std::optional<double> value() const override {
    RunningMean mean;
    for_each_group([&](std::span<const Example> group) {
      if (const auto found = rule_(group)) mean.add(found->value * found->weight, found->weight);
    });
    return mean.value();
  }
  std::string reason() const override {
    int64_t groups = 0;
    for_each_group([&](std::span<const Example>) { ++groups; });
    if (groups == 0) return reason_without_examples(expected_.weights);
    if (groups == 1) return fmt::format("the only group {}", lacks_);
    return fmt::format("each of the {} groups {}", groups, lacks_);
  }
  void reset() override { examples_.clear(); }
  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<GroupMean>(expected_, rule_, lacks_);
  }

 private:
  void for_each_group(const std::function<void(std::span<const Example>)>& use) const {
    std::span<const Example> left = examples_.sorted();
    while (!left.empty()) {
      size_t size = 0;
      while (size < left.size() && left[size].group == left[0].group) ++size;
      use(left.first(size));
      left = left.subspan(size);
    }
  }

  const Expected expected_;
  const GroupRule rule_;
  const std::string lacks_;
  ExampleList examples_;
};

double sum_of(std::span<const Example> examples, double (*term)(const Example&)) {
  ExactSum sum;
  for (const Example& example : examples) sum.add(term(example));
  return sum.value();
}

// Järvelin and Kekäläinen, Cumulated Gain-Based Evaluation of IR Techniques, 2002. For examples with the same
// score, all orders are equally likely (McSherry and Najork, Computing Information Retrieval Performance
// Measures Efficiently in the Presence of Tied Scores, 2008).
class Ndcg {
 public:
  Ndcg(int64_t at, Gain gain) : at_(at), gain_(gain) {}

  std::optional<GroupValue> operator()(std::span<const Example> group) const {
    std::vector<double> gains;
    for (const Example& example : group) gains.push_back(gain_of(example));
    ExactSum found;
    size_t rank = 0;  // from 0
    for (size_t end = group.size(); end > 0;) {
      ExactSum gain;
      ExactSum discount;
      size_t begin = end;
      for (; begin > 0 && group[begin - 1].score == group[end - 1].score; --begin) {
        gain.add(gains[begin - 1]);
        discount.add(discount_at(rank++));
      }
      found.add(gain.value() / static_cast<double>(end - begin) * discount.value());
      end = begin;
    }
    std::sort(gains.begin(), gains.end(), std::greater<>());
    ExactSum best;
    for (size_t i = 0; i < gains.size(); ++i) best.add(gains[i] * discount_at(i));
    if (best.value() == 0) return std::nullopt;
    return GroupValue{found.value() / best.value(), 1};
  }

 private:
  double gain_of(const Example& example) const {
    return example.weight * (gain_ == Gain::Linear ? example.label : same::exp2(example.label) - 1);
  }
  double discount_at(size_t rank) const {
    if (at_ > 0 && rank >= static_cast<size_t>(at_)) return 0;
    return 1 / same::log2(static_cast<double>(rank) + 2);
  }

  int64_t at_;
  Gain gain_;
};

}  // namespace

MetricPtr group_auc(const std::string& label, const std::string& group, const GroupAucOptions& options) {
  const auto rule = [by = options.by](std::span<const Example> examples) -> std::optional<GroupValue> {
    const auto area = auc_of(bins_of(examples));
    if (!area) return std::nullopt;
    const double all = sum_of(examples, [](const Example& example) { return example.weight; });
    return GroupValue{*area, by == By::Groups ? 1 : all};
  };
  return std::make_shared<GroupMean>(Expected{.metric = options.name.empty() ? "group_auc" : options.name,
                                              .label = label,
                                              .weights = options.weights,
                                              .group = group},
                                     rule, "has examples of one class only");
}

MetricPtr ndcg(const std::string& label, const std::string& group, const NdcgOptions& options) {
  const std::string own_name = options.at > 0 ? fmt::format("ndcg@{}", options.at) : "ndcg";
  const std::string name = options.name.empty() ? own_name : options.name;
  if (options.at < 0)
    fail(ErrorKind::InvalidArgument, "{}: .at is {}; expected a number of ranks, or 0 for all", name,
         options.at);
  return std::make_shared<GroupMean>(Expected{.metric = name,
                                              .label = label,
                                              .weights = options.weights,
                                              .group = group,
                                              .labels = Expected::Labels::Relevances,
                                              // This limit keeps the sums of the gains finite.
                                              .most_relevant = options.gain == Gain::Linear ? 1e100 : 512},
                                     Ndcg(options.at, options.gain), "has no example with a gain");
}

}  // namespace tutti::metrics
