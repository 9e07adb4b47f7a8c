#include "tutti/data/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Functions.h>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

template <class Of>
torch::Tensor tensor_of(const std::vector<ColumnStatistics>& columns, const Of& of) {
  torch::Tensor all = at::empty({static_cast<int64_t>(columns.size())}, at::kDouble);
  std::transform(columns.begin(), columns.end(), all.data_ptr<double>(), of);
  return all;
}

double or_nan(const ColumnStatistics& column, double number) {
  return column.count > 0 ? number : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

// Welford's algorithm, which stays accurate if the mean is far from 0.
void ColumnStatistics::add(double number) {
  if (std::isnan(number)) {
    ++missing;
    return;
  }
  ++count;
  min = std::min(min, number);
  max = std::max(max, number);
  const double before = number - mean;
  mean += before / static_cast<double>(count);
  squares += before * (number - mean);
}

// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
void ColumnStatistics::merge(const ColumnStatistics& other) {
  missing += other.missing;
  if (other.count == 0) return;
  const auto own = static_cast<double>(count);
  const auto its = static_cast<double>(other.count);
  const double apart = other.mean - mean;
  count += other.count;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  mean += apart * its / (own + its);
  squares += other.squares + apart * apart * own * its / (own + its);
}

void TableStatistics::merge(const TableStatistics& other) {
  if (columns.empty()) columns.resize(other.columns.size());
  if (columns.size() != other.columns.size())
    fail(ErrorKind::InvalidArgument, "statistics of {} columns cannot be merged with those of {} columns",
         columns.size(), other.columns.size());
  for (size_t i = 0; i < columns.size(); ++i) columns[i].merge(other.columns[i]);
}

torch::Tensor TableStatistics::min() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return or_nan(c, c.min); });
}

torch::Tensor TableStatistics::max() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return or_nan(c, c.max); });
}

torch::Tensor TableStatistics::mean() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return or_nan(c, c.mean); });
}

torch::Tensor TableStatistics::variance() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return or_nan(c, c.variance()); });
}

torch::Tensor TableStatistics::count() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return static_cast<double>(c.count); });
}

torch::Tensor TableStatistics::missing() const {
  return tensor_of(columns, [](const ColumnStatistics& c) { return static_cast<double>(c.missing); });
}

TableStatistics statistics_of(const torch::Tensor& rows) {
  const int64_t columns = rows.size(0) > 0 ? rows.numel() / rows.size(0) : 0;
  const torch::Tensor numbers = rows.to(at::kCPU, at::kDouble).reshape({rows.size(0), columns}).contiguous();
  TableStatistics statistics{std::vector<ColumnStatistics>(static_cast<size_t>(columns))};
  const double* number = numbers.data_ptr<double>();
  for (int64_t row = 0; row < rows.size(0); ++row) {
    for (ColumnStatistics& column : statistics.columns) column.add(*number++);
  }
  return statistics;
}

TableStatistics statistics_in_parts(int64_t examples,
                                    const std::function<TableStatistics(std::span<const int64_t>)>& of) {
  constexpr int64_t kAtOnce = 1024;
  TableStatistics all;
  std::vector<int64_t> part;
  for (int64_t begin = 0; begin < examples; begin += kAtOnce) {
    part.resize(static_cast<size_t>(std::min(kAtOnce, examples - begin)));
    std::iota(part.begin(), part.end(), begin);
    all.merge(of(part));
  }
  return all;
}

}  // namespace tutti::data
