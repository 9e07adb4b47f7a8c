#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/metrics/metrics.h"

namespace tutti::metrics {
namespace {

// The number of examples of each class with this score.
struct Bin {
  double score = 0;
  uint64_t positives = 0;
  uint64_t negatives = 0;
};

constexpr size_t kCountersOfBin = 3;

// Counts examples per distinct score: adding the counts of two workers is exact, so the value does not depend
// on which worker saw which example.
class Auc final : public Metric {
 public:
  Auc(std::string label, const MetricOptions& options)
      : name_(options.name.empty() ? "auc" : options.name), label_(std::move(label)) {}

  const std::string& name() const override { return name_; }

  void update(const torch::Tensor& prediction, const Batch& batch) override {
    if (batch.size() == 0) return;
    const torch::Tensor scores = scores_of(prediction, batch.size());
    const torch::Tensor labels = labels_of(batch);
    const auto* score = scores.data_ptr<double>();
    const auto* label = labels.data_ptr<double>();
    for (int64_t i = 0; i < batch.size(); ++i) {
      if (std::isnan(label[i])) continue;
      bins_.push_back({score[i], label[i] == 1 ? 1U : 0U, label[i] == 1 ? 0U : 1U});
    }
    compact_where_due();
  }

  std::vector<double> counters() const override {
    std::vector<double> counters;
    for (const Bin& bin : compacted(bins_)) {
      counters.insert(counters.end(),
                      {bin.score, static_cast<double>(bin.positives), static_cast<double>(bin.negatives)});
    }
    return counters;
  }

  void merge(std::span<const double> counters) override {
    TUTTI_CHECK(counters.size() % kCountersOfBin == 0, "{} counters, not a multiple of 3", counters.size());
    for (size_t i = 0; i < counters.size(); i += kCountersOfBin) {
      bins_.push_back(
          {counters[i], static_cast<uint64_t>(counters[i + 1]), static_cast<uint64_t>(counters[i + 2])});
    }
    compact_where_due();
  }

  // Computes Mann and Whitney's statistic, doubled so that ties stay whole numbers: the sum over the scores,
  // in ascending order, of positives * (2 * negatives below + negatives with the same score).
  std::optional<double> value() const override {
    __extension__ using Wide = unsigned __int128;
    Wide doubled = 0;
    uint64_t negatives = 0;
    uint64_t positives = 0;
    for (const Bin& bin : compacted(bins_)) {
      doubled += static_cast<Wide>(bin.positives) * (2 * static_cast<Wide>(negatives) + bin.negatives);
      negatives += bin.negatives;
      positives += bin.positives;
    }
    if (negatives == 0 || positives == 0) return std::nullopt;
    return static_cast<double>(doubled) / 2 / static_cast<double>(negatives) / static_cast<double>(positives);
  }

  void reset() override {
    bins_.clear();
    compact_at_ = kFirstCompaction;
  }

  std::unique_ptr<Metric> clone() const override {
    return std::make_unique<Auc>(label_, MetricOptions{name_});
  }

 private:
  static constexpr size_t kFirstCompaction = 1 << 20;

  torch::Tensor scores_of(const torch::Tensor& prediction, int64_t examples) const {
    torch::Tensor scores = prediction.detach().to(torch::kCPU, torch::kDouble);
    if (scores.dim() == 2 && scores.size(1) == 2) scores = scores.select(1, 1) - scores.select(1, 0);
    if (scores.numel() != examples || scores.dim() == 0 || scores.size(0) != examples) {
      fail(ErrorKind::InvalidArgument,
           "{}: the predictions for {} examples have shape [{}]; expected one score for each example", name_,
           examples, fmt::join(prediction.sizes(), ", "));
    }
    const auto without_order = scores.isnan().sum().item<int64_t>();
    if (without_order > 0) {
      fail(ErrorKind::InvalidArgument, "{}: {} of {} scores are NaN and cannot be ranked", name_,
           without_order, examples);
    }
    return scores.contiguous();
  }

  torch::Tensor labels_of(const Batch& batch) const {
    const torch::Tensor labels = batch[label_].detach().to(torch::kCPU, torch::kDouble).contiguous();
    const bool well_formed =
        labels.numel() == batch.size() && (labels.eq(0) | labels.eq(1) | labels.isnan()).all().item<bool>();
    if (!well_formed) {
      fail(ErrorKind::InvalidArgument, "{}: '{}' must be 0, 1 or missing (NaN) for each of {} examples",
           name_, label_, batch.size());
    }
    return labels;
  }

  // Returns the bins sorted, with one bin per score.
  static std::vector<Bin> compacted(std::vector<Bin> bins) {
    std::sort(bins.begin(), bins.end(), [](const Bin& a, const Bin& b) { return a.score < b.score; });
    size_t kept = 0;
    for (size_t i = 0; i < bins.size(); ++i) {
      if (kept > 0 && bins[kept - 1].score == bins[i].score) {
        bins[kept - 1].positives += bins[i].positives;
        bins[kept - 1].negatives += bins[i].negatives;
      } else {
        bins[kept++] = bins[i];
      }
    }
    bins.resize(kept);
    return bins;
  }

  // Doubles the threshold if compacting saved little, so that sorting stays a small part of the work.
  void compact_where_due() {
    if (bins_.size() < compact_at_) return;
    bins_ = compacted(std::move(bins_));
    compact_at_ = std::max(kFirstCompaction, 2 * bins_.size());
  }

  std::string name_;
  std::string label_;
  std::vector<Bin> bins_;  // in any order; scores may repeat
  size_t compact_at_ = kFirstCompaction;
};

}  // namespace

MetricPtr auc(const std::string& label, const MetricOptions& options) {
  return std::make_shared<Auc>(label, options);
}

}  // namespace tutti::metrics
