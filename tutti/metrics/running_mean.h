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
  // `sum`: one number on any device, over `count` things.
  void add(const torch::Tensor& sum, int64_t count);

  std::vector<double> counters() const { return {sum(), static_cast<double>(count_)}; }
  void merge(std::span<const double> counters);
  // Nothing where nothing was counted.
  std::optional<double> value() const;

 private:
  double sum() const;

  torch::Tensor on_device_;  // undefined before the first add
  double merged_ = 0;        // what came from others
  int64_t count_ = 0;
};

}  // namespace tutti::metrics
