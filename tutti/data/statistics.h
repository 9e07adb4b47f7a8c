#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

namespace tutti::data {

// Statistics of a column of numbers. Those of several parts can be merged: merging them in the same order
// gives the same bits, no matter which task computed which part.
struct ColumnStatistics {
  int64_t count = 0;    // number of values that are not missing
  int64_t missing = 0;  // number of NaNs
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double squares = 0;  // sum of the squared differences from the mean

  void add(double number);
  void merge(const ColumnStatistics& other);

  // Returns the variance of the population, that is, the mean squared difference. 0 if there are no numbers.
  double variance() const { return count > 0 ? squares / static_cast<double>(count) : 0; }
  // Returns a replacement for missing values: the mean, or 0 if there are no numbers.
  double filler() const { return count > 0 ? mean : 0; }
};

// Statistics of a table, column by column. The tensors have one float64 number per column.
struct TableStatistics {
  std::vector<ColumnStatistics> columns = {};

  void merge(const TableStatistics& other);

  // These four are NaN for a column without numbers.
  torch::Tensor min() const;
  torch::Tensor max() const;
  torch::Tensor mean() const;
  torch::Tensor variance() const;
  torch::Tensor count() const;
  torch::Tensor missing() const;
};

// Computes the statistics of a tensor with one row per example; all its other dimensions count as columns.
TableStatistics statistics_of(const torch::Tensor& rows);
// Computes the statistics of `examples` examples, a part at a time.
TableStatistics statistics_in_parts(int64_t examples,
                                    const std::function<TableStatistics(std::span<const int64_t>)>& of);

}  // namespace tutti::data
