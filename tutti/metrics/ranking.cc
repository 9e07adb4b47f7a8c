#include "tutti/metrics/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::metrics {
namespace {

// A 64-bit number is sent as two halves, each of which a double represents exactly.
constexpr double kHalf = 4294967296.0;

double upper_half(int64_t number) { return static_cast<double>(number >> 32); }
double lower_half(int64_t number) { return static_cast<double>(static_cast<uint32_t>(number)); }
int64_t joined(double upper, double lower) {
  TUTTI_CHECK(std::abs(upper) <= kHalf / 2 && lower >= 0 && lower < kHalf, "halves {} and {}", upper, lower);
  return static_cast<int64_t>(static_cast<uint64_t>(static_cast<int64_t>(upper)) << 32 |
                              static_cast<uint64_t>(lower));
}

}  // namespace

std::vector<Bin> bins_of(std::span<const Example> examples) {
  std::vector<Bin> bins;
  for (size_t begin = 0; begin < examples.size();) {
    ExactSum positives;
    ExactSum negatives;
    size_t end = begin;
    for (; end < examples.size() && examples[end].score == examples[begin].score; ++end)
      (examples[end].label == 1 ? positives : negatives).add(examples[end].weight);
    bins.push_back({examples[begin].score, positives.value(), negatives.value()});
    begin = end;
  }
  return bins;
}

std::optional<double> auc_of(std::span<const Bin> bins) {
  ExactSum positives;
  ExactSum negatives;
  ExactSum ordered;  // the weight of the pairs in the right order
  for (const Bin& bin : bins) {
    if (bin.positives > 0) ordered.add(bin.positives * (negatives.value() + bin.negatives / 2));
    positives.add(bin.positives);
    negatives.add(bin.negatives);
  }
  const double pairs = positives.value() * negatives.value();
  if (pairs == 0) return std::nullopt;
  return ordered.value() / pairs;
}

std::optional<double> average_precision_of(std::span<const Bin> bins) {
  ExactSum positives;
  ExactSum all;
  ExactSum sum;
  for (size_t i = bins.size(); i-- > 0;) {
    positives.add(bins[i].positives);
    all.add(bins[i].positives);
    all.add(bins[i].negatives);
    if (bins[i].positives > 0) sum.add(bins[i].positives * (positives.value() / all.value()));
  }
  if (positives.value() == 0) return std::nullopt;
  return sum.value() / positives.value();
}

std::vector<CurvePoint> curve_of(std::span<const Bin> bins) {
  std::vector<CurvePoint> points(bins.size() + 1);
  ExactSum true_positives;
  ExactSum false_positives;
  for (size_t i = bins.size(); i-- > 0;) {
    true_positives.add(bins[i].positives);
    false_positives.add(bins[i].negatives);
    points[i].true_positives = true_positives.value();
    points[i].false_positives = false_positives.value();
  }
  ExactSum false_negatives;
  ExactSum true_negatives;
  points[0].threshold = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < bins.size(); ++i) {
    false_negatives.add(bins[i].positives);
    true_negatives.add(bins[i].negatives);
    points[i + 1].threshold = bins[i].score;
    points[i + 1].false_negatives = false_negatives.value();
    points[i + 1].true_negatives = true_negatives.value();
  }
  return points;
}

std::string reason_without_class(uint64_t positives, uint64_t negatives, const std::string& weights) {
  const uint64_t examples = positives + negatives;
  const int of_class = positives > 0 ? 1 : 0;
  if (examples == 0) return reason_without_examples(weights);
  if (examples == 1) return fmt::format("the only example is of class {}", of_class);
  return fmt::format("all {} examples are of class {}", examples, of_class);
}

void ExampleList::add(const std::vector<Example>& examples) {
  examples_.insert(examples_.end(), examples.begin(), examples.end());
  is_sorted_ = false;
}

std::span<const Example> ExampleList::sorted() const {
  if (!is_sorted_) std::sort(examples_.begin(), examples_.end(), is_before);
  is_sorted_ = true;
  return examples_;
}

std::vector<double> ExampleList::counters() const {
  std::vector<double> counters;
  counters.reserve(numbers_per_example() * examples_.size());
  for (const Example& example : sorted()) {
    counters.insert(counters.end(), {example.score, example.label});
    if (has_weights_) counters.push_back(example.weight);
    if (has_groups_) counters.insert(counters.end(), {upper_half(example.group), lower_half(example.group)});
  }
  return counters;
}

void ExampleList::merge(std::span<const double> counters) {
  const size_t numbers = numbers_per_example();
  TUTTI_CHECK(counters.size() % numbers == 0, "{} counters, not a multiple of {}", counters.size(), numbers);
  for (size_t i = 0; i < counters.size(); i += numbers) {
    Example example{.score = counters[i], .label = counters[i + 1]};
    if (has_weights_) example.weight = counters[i + 2];
    if (has_groups_) example.group = joined(counters[i + numbers - 2], counters[i + numbers - 1]);
    examples_.push_back(example);
  }
  is_sorted_ = false;
}

}  // namespace tutti::metrics
