#include "tutti/data/source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <ATen/Functions.h>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

template <class NumberOf>
torch::Tensor tensor_of(const std::vector<ColumnStatistics>& columns, const NumberOf& number_of) {
  torch::Tensor all = at::empty({static_cast<int64_t>(columns.size())}, at::kDouble);
  std::transform(columns.begin(), columns.end(), all.data_ptr<double>(), number_of);
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

TableStatistics statistics_in_parts(
    int64_t examples, const std::function<TableStatistics(std::span<const int64_t>)>& statistics_of_part) {
  constexpr int64_t kAtOnce = 1024;
  TableStatistics all;
  std::vector<int64_t> part;
  for (int64_t begin = 0; begin < examples; begin += kAtOnce) {
    part.resize(static_cast<size_t>(std::min(kAtOnce, examples - begin)));
    std::iota(part.begin(), part.end(), begin);
    all.merge(statistics_of_part(part));
  }
  return all;
}

namespace {

// Copies rows without index_select, which would start kernel threads that compete with the threads of the
// training loop.
torch::Tensor copy_rows(const torch::Tensor& from, std::span<const int64_t> rows) {
  auto shape = from.sizes().vec();
  shape[0] = static_cast<int64_t>(rows.size());
  torch::Tensor to = at::empty(shape, from.options());
  const size_t row_bytes = from.size(0) == 0 ? 0 : from.nbytes() / static_cast<size_t>(from.size(0));
  if (row_bytes == 0) return to;
  const auto* source = static_cast<const char*>(from.data_ptr());
  auto* target = static_cast<char*>(to.data_ptr());
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = begin + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    const size_t bytes = (end - begin) * row_bytes;
    std::memcpy(target, source + static_cast<size_t>(rows[begin]) * row_bytes, bytes);
    target += bytes;
  }
  return to;
}

torch::Tensor select_on_device(const torch::Tensor& from, std::span<const int64_t> rows) {
  const torch::Tensor index = at::tensor(at::IntArrayRef(rows.data(), rows.size()), at::kLong);
  return at::index_select(from, 0, index.to(from.device()));
}

class TensorSource final : public Source {
 public:
  explicit TensorSource(Batch batch) : batch_(std::move(batch)) {}

  int64_t size() const override { return batch_.size(); }

  Batch read(std::span<const int64_t> examples) const override {
    check_examples(examples, size(), "tensors in memory");
    Batch::Tensors rows;
    rows.reserve(batch_.tensors().size());
    for (const auto& [name, tensor] : batch_.tensors()) {
      rows.emplace_back(
          name, tensor.device().is_cpu() ? copy_rows(tensor, examples) : select_on_device(tensor, examples));
    }
    return Batch(std::move(rows));
  }

 private:
  const Batch batch_;
};

}  // namespace

TableStatistics Source::statistics(const std::string& name) const {
  return statistics_in_parts(
      size(), [&](std::span<const int64_t> examples) { return statistics_of(read(examples)[name]); });
}

std::shared_ptr<const Source> from_tensors(Batch::Tensors tensors) {
  if (tensors.empty()) fail(ErrorKind::InvalidArgument, "from_tensors: at least one tensor is needed");
  Batch checked(std::move(tensors));
  Batch::Tensors contiguous;
  for (const auto& [name, tensor] : checked.tensors()) {
    contiguous.emplace_back(name, tensor.detach().contiguous());
  }
  return std::make_shared<TensorSource>(Batch(std::move(contiguous)));
}

void check_examples(std::span<const int64_t> examples, int64_t size, std::string_view what) {
  for (const int64_t example : examples) {
    if (example < 0 || example >= size) {
      fail(ErrorKind::Bug, "{}: example {} was requested, but there are only {}", what, example, size);
    }
  }
}

}  // namespace tutti::data
