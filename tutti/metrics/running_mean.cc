#include "tutti/metrics/running_mean.h"

#include "tutti/base/check.h"

namespace tutti::metrics {

void RunningMean::add(const torch::Tensor& sum, int64_t count) {
  const torch::Tensor more = sum.to(torch::kDouble);
  on_device_ = on_device_.defined() ? on_device_.to(more.device()) + more : more;
  count_ += count;
}

void RunningMean::merge(std::span<const double> counters) {
  TUTTI_CHECK(counters.size() == 2, "{} counters where a sum and a count are due", counters.size());
  merged_ += counters[0];
  count_ += static_cast<int64_t>(counters[1]);
}

std::optional<double> RunningMean::value() const {
  if (count_ == 0) return std::nullopt;
  return sum() / static_cast<double>(count_);
}

double RunningMean::sum() const { return merged_ + (on_device_.defined() ? on_device_.item<double>() : 0); }

}  // namespace tutti::metrics
