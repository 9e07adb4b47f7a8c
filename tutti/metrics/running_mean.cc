#include "tutti/metrics/running_mean.h"

#include <cmath>
#include <utility>

#include <ATen/Functions.h>

#include "tutti/base/check.h"
#include "tutti/metrics/finite.h"

namespace tutti::metrics {
namespace {

// a + b equals sum + rest exactly, if |a| >= |b| (Dekker's Fast2Sum).
struct Sum {
  double sum;
  double rest;
};
Sum add_exactly(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

}  // namespace

void ExactSum::add(double number) {
  if (!std::isfinite(number)) {
    beyond_ += number;
    return;
  }
  size_t kept = 0;
  for (const double part : parts_) {
    const bool is_smaller = std::abs(number) < std::abs(part);
    const Sum both = is_smaller ? add_exactly(part, number) : add_exactly(number, part);
    if (!std::isfinite(both.sum)) {
      beyond_ += both.sum;
      return;
    }
    if (both.rest != 0) parts_[kept++] = both.rest;
    number = both.sum;
  }
  parts_.resize(kept);
  if (number != 0) parts_.push_back(number);
}

void ExactSum::add(const ExactSum& other) {
  beyond_ += other.beyond_;
  for (const double part : other.parts_) add(part);
}

double ExactSum::value() const {
  if (beyond_ != 0) return beyond_;
  if (parts_.empty()) return 0;
  size_t left = parts_.size() - 1;
  double sum = parts_[left];
  double rest = 0;
  while (left > 0 && rest == 0) {
    const Sum both = add_exactly(sum, parts_[--left]);
    sum = both.sum;
    rest = both.rest;
  }
  // If the rest is exactly half of the last digit, the next part determines the direction of rounding.
  if (left > 0 && (rest < 0) == (parts_[left - 1] < 0)) {
    const double doubled = 2 * rest;
    const double rounded = sum + doubled;
    if (doubled == rounded - sum) sum = rounded;
  }
  return sum;
}

std::vector<double> ExactSum::numbers() const {
  std::vector<double> numbers = {code_of(beyond_)};
  numbers.insert(numbers.end(), parts_.begin(), parts_.end());
  return numbers;
}

ExactSum ExactSum::from(std::span<const double> numbers) {
  TUTTI_CHECK(!numbers.empty(), "there are no numbers; expected those of a sum");
  ExactSum sum;
  sum.beyond_ = number_of_code(numbers[0]);
  for (const double part : numbers.subspan(1)) sum.add(part);
  return sum;
}

void RunningMean::add(const torch::Tensor& numbers, const torch::Tensor& counts) {
  constexpr int64_t kMostWaiting = 1 << 20;
  numbers_.push_back(numbers.detach().to(torch::kDouble).flatten());
  counts_.push_back(counts.detach().to(torch::kDouble).flatten());
  waiting_ += numbers.numel() + counts.numel();
  if (waiting_ >= kMostWaiting) fold();
}

void RunningMean::add(const torch::Tensor& numbers, int64_t count) {
  add(numbers, at::scalar_tensor(static_cast<double>(count), at::kDouble));
}

void RunningMean::add(double number, double count) {
  sum_.add(number);
  count_.add(count);
}

// Adds the waiting numbers to the sums.
void RunningMean::fold() const {
  const auto add_all = [](std::vector<torch::Tensor>& tensors, ExactSum& sum) {
    if (tensors.empty()) return;
    // Copies once per device instead of once per batch.
    for (torch::Tensor& tensor : tensors) tensor = tensor.to(tensors.front().device());
    const torch::Tensor all = at::cat(std::exchange(tensors, {})).cpu().contiguous();
    const auto* values = static_cast<const double*>(all.data_ptr());
    for (int64_t i = 0; i < all.numel(); ++i) sum.add(values[i]);
  };
  add_all(numbers_, sum_);
  add_all(counts_, count_);
  waiting_ = 0;
}

std::vector<double> RunningMean::counters() const {
  fold();
  const std::vector<double> count = count_.numbers();
  const std::vector<double> sum = sum_.numbers();
  std::vector<double> counters = {static_cast<double>(count.size())};
  counters.insert(counters.end(), count.begin(), count.end());
  counters.insert(counters.end(), sum.begin(), sum.end());
  return counters;
}

void RunningMean::merge(std::span<const double> counters) {
  const size_t size = counters.empty() ? 0 : static_cast<size_t>(counters[0]);
  TUTTI_CHECK(size >= 1 && size + 2 <= counters.size(), "{} counters; expected two sums", counters.size());
  count_.add(ExactSum::from(counters.subspan(1, size)));
  sum_.add(ExactSum::from(counters.subspan(1 + size)));
}

std::optional<double> RunningMean::value() const {
  fold();
  const double count = count_.value();
  if (count == 0) return std::nullopt;
  return sum_.value() / count;
}

}  // namespace tutti::metrics
