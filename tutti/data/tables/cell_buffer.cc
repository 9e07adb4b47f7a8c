#include "tutti/data/tables/cell_buffer.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <ATen/Functions.h>

#include "tutti/base/check.h"

namespace tutti::data {
namespace {

// Fills the places after a list that is shorter than others.
template <class T>
constexpr T kPadding = -1;
template <>
constexpr float kPadding<float> = std::numeric_limits<float>::quiet_NaN();

}  // namespace

CellBuffer::CellBuffer(const TableKind& kind, size_t columns, int64_t rows)
    : kind_(kind), columns_(columns), capacity_(rows) {
  if (!kind.is_dense()) {
    lists_.resize(static_cast<size_t>(rows) * columns);
    return;
  }
  const torch::ScalarType type = kind.cells.is_float() ? at::kFloat : at::kLong;
  tensor_ = at::empty({rows, static_cast<int64_t>(columns)}, type);
  dense_ = static_cast<std::byte*>(tensor_.data_ptr());
  row_bytes_ = columns * tensor_.element_size();
}

void CellBuffer::end_rows(int64_t count) {
  row_ += count;
  values_before_ = values_now();
}

void CellBuffer::restart_row() {
  floats_.resize(kind_.cells.is_float() ? values_before_ : 0);
  integers_.resize(kind_.cells.is_float() ? 0 : values_before_);
}

void CellBuffer::clear() {
  row_ = 0;
  values_before_ = 0;
  restart_row();
}

int64_t CellBuffer::longest() const {
  int64_t longest = 0;
  for (const List& list : lists_) longest = std::max(longest, list.length);
  return longest;
}

template <class T>
torch::Tensor CellBuffer::padded_to(int64_t width) {
  const torch::Tensor all = at::full({capacity_, static_cast<int64_t>(columns_), width}, kPadding<T>,
                                     c10::CppTypeToScalarType<T>::value);
  T* to = static_cast<T*>(all.data_ptr());
  const T* from = values<T>().data();
  for (const List& list : lists_) {
    std::copy_n(from + list.begin, list.length, to);
    to += width;
  }
  return all;
}

// Returns a sparse tensor that is 1 if any of a row's lists contains the index.
torch::Tensor CellBuffer::as_sparse() const {
  std::set<std::pair<int64_t, int64_t>> ones;
  for (size_t i = 0; i < lists_.size(); ++i) {
    const auto row = static_cast<int64_t>(i / columns_);
    for (int64_t k = 0; k < lists_[i].length; ++k)
      ones.emplace(row, integers_[lists_[i].begin + static_cast<size_t>(k)]);
  }
  const torch::Tensor places = at::empty({2, static_cast<int64_t>(ones.size())}, at::kLong);
  auto* to = static_cast<int64_t*>(places.data_ptr());
  for (const auto& [row, column] : ones) {
    to[ones.size()] = column;
    *to++ = row;
  }
  return at::sparse_coo_tensor(places, at::ones({places.size(1)}, at::kFloat), {capacity_, kind_.size})
      ._coalesced_(true);
}

torch::Tensor CellBuffer::lengths() const {
  const torch::Tensor all = at::empty({capacity_, static_cast<int64_t>(columns_)}, at::kLong);
  auto* to = static_cast<int64_t*>(all.data_ptr());
  for (const List& list : lists_) *to++ = list.length;
  return all;
}

void CellBuffer::move_to(const std::string& name, Batch::Tensors& tensors) {
  TUTTI_CHECK(row_ == capacity_, "{} of {} rows of '{}' were read", row_, capacity_, name);
  if (kind_.is_dense()) {
    tensors.emplace_back(name, std::move(tensor_));
    return;
  }
  if (kind_.form == TableKind::Form::Indices) {
    tensors.emplace_back(name, as_sparse());
  } else {
    const int64_t width = kind_.form == TableKind::Form::Padded ? kind_.size : longest();
    tensors.emplace_back(
        name, with_type_of(kind_.cells, [&](auto zero) { return padded_to<decltype(zero)>(width); }));
  }
  tensors.emplace_back(name + " length", lengths());
}

}  // namespace tutti::data
