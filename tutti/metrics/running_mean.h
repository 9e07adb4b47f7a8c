#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/types.h>

namespace tutti::metrics {

// A sum and what it is divided by. What a GPU adds stays there until somebody asks, so that no batch waits
// for it.
class RunningMean {
 public:
  // One number each on any device: a sum, and over how many things it is.
  void add(const torch::Tensor& sum, const torch::Tensor& count);
  void add(const torch::Tensor& sum, int64_t count);

  std::vector<double> counters() const { return {sum(), count()}; }
  void merge(std::span<const double> counters);
  // Nothing where nothing was counted.
  std::optional<double> value() const;

 private:
  double sum() const;
  double count() const;

  torch::Tensor sum_on_device_;  // both undefined before the first add
  torch::Tensor count_on_device_;
  double merged_sum_ = 0;  // what came from others
  double merged_count_ = 0;
};

}  // namespace tutti::metrics
