#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

namespace tutti::data {

// What a column of numbers holds. Those of several parts are put together: in the same order they give the
// same bits, whoever has looked at which part.
struct ColumnStatistics {
  int64_t count = 0;    // of numbers
  int64_t missing = 0;  // NaN
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  double squares = 0;  // sum of the squared differences from the mean

  void add(double number);
  void merge(const ColumnStatistics& other);

  // Of the numbers that there are, as those of a whole: the mean squared difference. 0 where there are none.
  double variance() const { return count > 0 ? squares / static_cast<double>(count) : 0; }
  // In place of what is missing: the mean, or 0 where there is no number.
  double filler() const { return count > 0 ? mean : 0; }
};

// What a table holds, column by column: a number for each in float64, as tensors.
struct TableStatistics {
  std::vector<ColumnStatistics> columns = {};

  void merge(const TableStatistics& other);

  // Without a number in it a column's least and greatest are NaN.
  torch::Tensor min() const;
  torch::Tensor max() const;
  torch::Tensor mean() const;
  torch::Tensor variance() const;
  torch::Tensor count() const;
  torch::Tensor missing() const;
};

// Of a tensor with a row an example; everything behind that counts as columns.
TableStatistics statistics_of(const torch::Tensor& rows);
// Of so many examples, some at a time.
TableStatistics statistics_in_parts(int64_t examples,
                                    const std::function<TableStatistics(std::span<const int64_t>)>& of);

}  // namespace tutti::data
