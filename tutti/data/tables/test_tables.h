#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/data/batch.h"
#include "tutti/data/tables/table.h"

namespace tutti::data {

// For tests: returns the tensors of all views for consecutive rows, named 0, 1, ...
inline Batch batch_of(const Table& table, int64_t begin, int64_t end) {
  std::vector<CellBuffer> buffers = table.buffers(end - begin);
  std::string scratch;
  table.read(begin, end, buffers, scratch);
  Batch::Tensors tensors;
  for (size_t view = 0; view < buffers.size(); ++view) buffers[view].move_to(std::to_string(view), tensors);
  return Batch(std::move(tensors));
}
inline Batch batch_of(const Table& table) { return batch_of(table, 0, table.size()); }

template <class Value>
std::vector<Value> values_in(const torch::Tensor& tensor) {
  const torch::Tensor all = tensor.contiguous();
  const auto* first = static_cast<const Value*>(all.data_ptr());
  return {first, first + all.numel()};
}

// The cells of a dense view, one row after the other.
template <class Value = float>
std::vector<Value> cells_of(const Table& table, int64_t begin, int64_t end, size_t view = 0) {
  return values_in<Value>(batch_of(table, begin, end)[std::to_string(view)]);
}

// The lists of a row, as text: "[1, 2] []".
template <class Value = float>
std::string lists_of(const Table& table, int64_t row, size_t view = 0) {
  const Batch batch = batch_of(table, row, row + 1);
  const torch::Tensor lists = batch[std::to_string(view)];
  const std::vector<int64_t> lengths = values_in<int64_t>(batch[std::to_string(view) + " length"]);
  std::vector<std::string> texts;
  for (size_t i = 0; i < lengths.size(); ++i)
    texts.push_back(
        fmt::format("{}", values_in<Value>(lists[0][static_cast<int64_t>(i)].narrow(0, 0, lengths[i]))));
  return fmt::format("{}", fmt::join(texts, " "));
}

}  // namespace tutti::data
