#include "tutti/metrics/running_mean.h"

#include <ATen/Functions.h>

#include "tutti/base/check.h"

namespace tutti::metrics {

void RunningMean::add(const torch::Tensor& sum, const torch::Tensor& count) {
  const auto add_to = [](torch::Tensor& all, const torch::Tensor& more) {
    const torch::Tensor wide = more.to(torch::kDouble);
    all = all.defined() ? all.to(wide.device()) + wide : wide;
  };
  add_to(sum_on_device_, sum);
  add_to(count_on_device_, count);
}

void RunningMean::add(const torch::Tensor& sum, int64_t count) {
  add(sum, at::scalar_tensor(static_cast<double>(count), at::kDouble));
}

void RunningMean::merge(std::span<const double> counters) {
  TUTTI_CHECK(counters.size() == 2, "{} counters where a sum and a count are due", counters.size());
  merged_sum_ += counters[0];
  merged_count_ += counters[1];
}

std::optional<double> RunningMean::value() const {
  const double count = this->count();
  if (count == 0) return std::nullopt;
  return sum() / count;
}

double RunningMean::sum() const {
  return merged_sum_ + (sum_on_device_.defined() ? sum_on_device_.item<double>() : 0);
}

double RunningMean::count() const {
  return merged_count_ + (count_on_device_.defined() ? count_on_device_.item<double>() : 0);
}

}  // namespace tutti::metrics
