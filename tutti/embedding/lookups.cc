#include "tutti/embedding/lookups.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti::embedding {

void Lookups::begin_step() {
  keys_.clear();
  columns_.clear();
  lanes_.clear();
  index_ = {};
  is_indexed_ = false;
  direct_.clear();
  fetched_ = torch::Tensor();
  lane_ = kNoLane;
}

void Lookups::add_lane(std::vector<Column> columns) {
  const size_t begin = columns_.size();
  for (Column& column : columns) {
    columns_.push_back({.ids = std::move(column.ids),
                        .begin = static_cast<int64_t>(keys_.size()),
                        .size = static_cast<int64_t>(column.keys.size()),
                        .leaf = {},
                        .grads = {}});
    if (keys_.empty())
      keys_ = std::move(column.keys);
    else
      keys_.insert(keys_.end(), column.keys.begin(), column.keys.end());
  }
  if (keys_.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    fail(ErrorKind::InvalidArgument, "a step looks up {} ids in '{}', more than 2^31", keys_.size(), table_);
  lanes_.push_back({begin, columns_.size()});
}

const RowIndex& Lookups::index(int bits) {
  if (!std::exchange(is_indexed_, true)) index_ = index_rows(keys_, bits);
  return index_;
}

void Lookups::read_from(const DirectRows& all) {
  for (const torch::Tensor& rows : all.of_owners)
    direct_.push_back(static_cast<const float*>(rows.data_ptr()));
  row_bits_ = all.row_bits;
}

void Lookups::read_from(torch::Tensor fetched) {
  fetched_ = std::move(fetched);
  fetched_rows_ = static_cast<const float*>(fetched_.data_ptr());
}

void Lookups::begin_lane(size_t lane) {
  TUTTI_CHECK(lane < lanes_.size(), "lane {} of {}", lane, lanes_.size());
  lane_ = lane;
  for (InLane& column : columns_of_lane()) column.leaf = column.grads = torch::Tensor();
}

void Lookups::end_lane() {
  for (InLane& column : columns_of_lane()) {
    if (column.leaf.defined() && column.leaf.grad().defined()) column.grads = column.leaf.grad().contiguous();
    column.leaf = torch::Tensor();
  }
  lane_ = kNoLane;
}

std::span<Lookups::InLane> Lookups::columns_of_lane() {
  const Lane& lane = lanes_.at(lane_);
  return std::span(columns_).subspan(lane.begin, lane.end - lane.begin);
}

// Calls `copy(find)`, where `find(lookup)` returns the row of a lookup, or null if it has none.
template <class Copy>
void Lookups::with_rows(const Copy& copy) const {
  if (direct_.empty()) {
    copy([this](int64_t lookup) -> const float* {
      const int32_t row = index_.row_of[static_cast<size_t>(lookup)];
      return row == RowIndex::kNone ? nullptr : fetched_rows_ + row * dim_;
    });
    return;
  }
  copy([this, mask = (uint64_t{1} << row_bits_) - 1](int64_t lookup) -> const float* {
    const uint64_t key = keys_[static_cast<size_t>(lookup)];
    return key == kNoKey ? nullptr : direct_[key >> row_bits_] + static_cast<int64_t>(key & mask) * dim_;
  });
}

torch::Tensor Lookups::gather(int64_t begin, int64_t size) const {
  constexpr int64_t kAhead = 16;   // rows are far apart, so each is fetched before it is needed
  constexpr int64_t kInLine = 16;  // floats in a line of the cache
  torch::Tensor rows = torch::empty({size, dim_}, torch::kFloat32);
  const size_t bytes = static_cast<size_t>(dim_) * sizeof(float);
  auto* to = static_cast<float*>(rows.data_ptr());
  with_rows([&](const auto& find) {
    for (int64_t i = begin; i < begin + size; ++i, to += dim_) {
      if (i + kAhead < begin + size) {
        const float* next = find(i + kAhead);
        for (int64_t k = 0; next != nullptr && k < dim_; k += kInLine) __builtin_prefetch(next + k);
      }
      if (const float* row = find(i))
        std::memcpy(to, row, bytes);
      else
        std::memset(to, 0, bytes);
    }
  });
  return rows;
}

torch::Tensor Lookups::all_rows() const { return gather(0, static_cast<int64_t>(keys_.size())); }

// The rows of a column's lookups are a leaf of autograd, which leaves their gradients in it.
const torch::Tensor& Lookups::leaf(InLane& column) {
  if (column.leaf.defined()) return column.leaf;
  column.leaf = gather(column.begin, column.size);
  if (torch::GradMode::is_enabled()) column.leaf.requires_grad_(true);
  return column.leaf;
}

const torch::Tensor* Lookups::leaf_of(const torch::Tensor& ids) {
  for (InLane& column : columns_of_lane()) {
    const torch::Tensor& own = column.ids;
    if (own.data_ptr() == ids.data_ptr() && own.numel() == ids.numel() &&
        own.scalar_type() == ids.scalar_type() && ids.is_contiguous() && own.is_contiguous())
      return &leaf(column);
  }
  return nullptr;
}

// Takes each row from a lookup of this lane, so that its gradient is added to the gradient of the lookup.
torch::Tensor Lookups::pick(const std::vector<uint64_t>& keys) {
  constexpr int kAllBits = 64;
  index(kAllBits);
  const std::span<InLane> columns = columns_of_lane();
  std::vector<int64_t> chosen;
  std::vector<torch::Tensor> leaves;
  const int64_t begin = columns.empty() ? 0 : columns.front().begin;
  const int64_t end = columns.empty() ? 0 : columns.back().begin + columns.back().size;
  bool has_none = false;
  for (const uint64_t key : keys) {
    if (key == kNoKey) {
      chosen.push_back(end - begin);  // a row of zeros
      has_none = true;
      continue;
    }
    const auto found = std::lower_bound(index_.keys.begin(), index_.keys.end(), key);
    const auto row = static_cast<size_t>(found - index_.keys.begin());
    const bool is_known = found != index_.keys.end() && *found == key;
    const auto first = index_.order.begin() + (is_known ? index_.begin[row] : 0);
    const auto last = index_.order.begin() + (is_known ? index_.begin[row + 1] : 0);
    const auto lookup = std::lower_bound(first, last, begin);
    if (lookup == last || *lookup >= end)
      fail(ErrorKind::InvalidArgument,
           "forward() looks up an id in '{}' that is in none of its columns: name all columns of the batch "
           "whose "
           "ids it looks up (EmbeddingOptions::columns)",
           table_);
    chosen.push_back(*lookup - begin);
  }
  for (InLane& column : columns) leaves.push_back(leaf(column));
  if (has_none || leaves.empty()) leaves.push_back(torch::zeros({1, dim_}, torch::kFloat32));
  return torch::cat(leaves).index_select(0, torch::tensor(chosen, torch::kLong));
}

torch::Tensor Lookups::in_shape(const torch::Tensor& rows, const torch::Tensor& ids) const {
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(dim_);
  return rows.view(shape).to(ids.device());
}

std::string Lookups::hash_of_lane(size_t lane) const {
  std::string hashes;
  for (size_t i = lanes_.at(lane).begin; i < lanes_[lane].end; ++i) {
    const torch::Tensor& grads = columns_[i].grads;
    if (grads.defined())
      hashes += bytes_of(xxh128({static_cast<const char*>(grads.data_ptr()), grads.nbytes()}));
  }
  return bytes_of(xxh128(hashes));
}

RowSums Lookups::sums(int bits, const LaneRange& range, int64_t lanes) {
  index(bits);
  std::vector<const float*> gradients(keys_.size(), nullptr);
  std::vector<int64_t> ends;
  for (const Lane& lane : std::span(lanes_).first(static_cast<size_t>(range.size()))) {
    ends.push_back(ends.empty() ? 0 : ends.back());
    for (size_t i = lane.begin; i < lane.end; ++i) {
      const InLane& column = columns_[i];
      ends.back() = column.begin + column.size;
      if (!column.grads.defined()) continue;
      const auto* gradient = static_cast<const float*>(column.grads.data_ptr());
      for (int64_t k = 0; k < column.size; ++k)
        gradients[static_cast<size_t>(column.begin + k)] = gradient + k * dim_;
    }
  }
  return sum_lanes(index_, dim_, gradients, ends, range, lanes);
}

}  // namespace tutti::embedding
