#include "tutti/embedding/table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

constexpr int64_t kPadding = -1;
constexpr int64_t kNoRow = -1;

// Returns the ids as int64 on the CPU. Floats, as some tables have them, hold whole numbers exactly up to a
// limit; beyond it an id may have become another one.
torch::Tensor whole_numbers(const torch::Tensor& ids, const std::string& table, const std::string& column) {
  if (!ids.is_floating_point()) return ids.to(torch::kCPU, torch::kLong).contiguous();
  constexpr double kExactFloat = 16777216;           // 2^24
  constexpr double kExactDouble = 9007199254740992;  // 2^53
  const double limit = ids.scalar_type() == torch::kDouble ? kExactDouble : kExactFloat;
  const torch::Tensor numbers = ids.to(torch::kCPU, torch::kDouble).contiguous();
  const auto* number = static_cast<const double*>(numbers.data_ptr());
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    if (number[i] != std::floor(number[i]) || std::abs(number[i]) > limit)
      fail(ErrorKind::InvalidArgument,
           "column '{}' has the id {} for the table '{}'; floating-point ids have to be whole numbers of at "
           "most "
           "{:.0f}",
           column, number[i], table, limit);
  }
  return numbers.to(torch::kLong);
}

}  // namespace

Table::Table(int64_t rows, int64_t dim, const TableOptions& options, bool may_be_padded)
    : rows_(rows), dim_(dim), options_(options), may_be_padded_(may_be_padded) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (rows < 1 || dim < 1 || rows > kMost || dim > kMost / rows)
    fail(ErrorKind::InvalidArgument, "an embedding with {} rows of {} numbers", rows, dim);
  if (!(options.initial_scale >= 0) || !std::isfinite(options.initial_scale))
    fail(ErrorKind::InvalidArgument, "the initial scale of an embedding is {}, expected 0 or more",
         options.initial_scale);
}

void Table::place(const std::string& name, const RowLayout& layout, int rank, int64_t seed,
                  const OptimizerOptions& optimizer, const Allocate& allocate) {
  name_ = name;
  columns_ = options_.columns;
  if (columns_.empty()) columns_ = {name.substr(name.rfind('.') + 1)};
  layout_ = layout;
  rank_ = rank;
  stride_ = layout.count(0);
  key_bits_ = std::bit_width(static_cast<uint64_t>(stride_) * static_cast<uint64_t>(layout.world()));
  // Every worker allocates as many rows, since shared memory has the same parts on all.
  const int64_t own = layout.count(rank);
  memory_ = allocate(std::max<int64_t>(stride_, 1) * dim_, torch::kFloat32);
  values_ = memory_.narrow(0, 0, own * dim_).view({own, dim_});
  const uint64_t table_seed = seed_of_table(seed, name);
  auto* row = static_cast<float*>(values_.data_ptr());
  for (int64_t i = 0; i < own; ++i, row += dim_)
    make_initial_row(table_seed, layout.id_at({rank, i}), options_.initial_scale,
                     std::span(row, static_cast<size_t>(dim_)));
  const RowOptimizerOptions own_optimizer = options_.optimizer.value_or(RowOptimizerOptions(optimizer));
  optimizer_.emplace(name, own_optimizer, own, dim_);
  rate_ = learning_rate_of(own_optimizer);
  all_.clear();
  if (layout.world() == 1) all_ = {values_};
  lookups_.emplace(name, dim_);
}

RowLayout::Place Table::place_of_key(uint64_t key) const {
  const auto number = static_cast<int64_t>(key);
  return {static_cast<int>(number / stride_), number % stride_};
}

void Table::fail_bad_id(int64_t id, int64_t example, const std::string& column) const {
  fail(ErrorKind::InvalidArgument,
       "the table '{}' has {} rows, but {} has the id {} in example {} of the batch; "
       "EmbeddingOptions::bad_ids can "
       "clamp or drop such ids",
       name_, rows_, column.empty() ? "a lookup" : fmt::format("column '{}'", column), id, example);
}

// Returns the ids of rows; kNoRow where an id has none.
std::vector<int64_t> Table::valid_ids(const torch::Tensor& ids, const std::string& column) const {
  const torch::Tensor whole = whole_numbers(ids, name_, column);
  const auto* id = static_cast<const int64_t*>(whole.data_ptr());
  const int64_t per_example = ids.dim() == 0 || ids.numel() == 0 ? 1 : ids.numel() / ids.size(0);
  std::vector<int64_t> valid(id, id + whole.numel());
  for (size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] >= 0 && valid[i] < rows_) continue;
    if (may_be_padded_ && valid[i] == kPadding)
      valid[i] = kNoRow;
    else if (options_.bad_ids == BadIds::Error)
      fail_bad_id(valid[i], static_cast<int64_t>(i) / per_example, column);
    else
      valid[i] = options_.bad_ids == BadIds::Drop ? kNoRow : std::clamp<int64_t>(valid[i], 0, rows_ - 1);
  }
  return valid;
}

std::vector<uint64_t> Table::keys_of(const torch::Tensor& ids, const std::string& column) const {
  const std::vector<int64_t> valid = valid_ids(ids, column);
  std::vector<uint64_t> keys(valid.size(), kNoKey);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (valid[i] == kNoRow) continue;
    const RowLayout::Place place = layout_.place_of(valid[i]);
    keys[i] = static_cast<uint64_t>(place.owner * stride_ + place.row);
  }
  return keys;
}

std::vector<Lookups::Column> Table::columns_in(const Batch& batch) const {
  std::vector<Lookups::Column> columns;
  if (batch.size() == 0) return columns;
  for (const std::string& name : columns_) {
    if (!batch.has(name))
      fail(ErrorKind::InvalidArgument,
           "the table '{}' looks up the ids of the column '{}', which the batch does not have; name its "
           "columns in "
           "EmbeddingOptions::columns",
           name_, name);
    const torch::Tensor& ids = batch[name];
    columns.push_back({ids, keys_of(ids, name)});
  }
  return columns;
}

void Table::read(int owner, std::span<const int64_t> rows, float* to) const {
  const torch::Tensor& from = owner == rank_ ? values_ : all_.at(static_cast<size_t>(owner));
  const auto* values = static_cast<const float*>(from.data_ptr());
  for (const int64_t row : rows) {
    std::memcpy(to, values + row * dim_, static_cast<size_t>(dim_) * sizeof(float));
    to += dim_;
  }
}

torch::Tensor Table::look_up(const torch::Tensor& ids) {
  if (!is_placed())
    place(name_, RowLayout(options_.placement, rows_, 1), 0, 1, torch::optim::SGDOptions(0),
          [](int64_t elements, const torch::TensorOptions& options) {
            return torch::zeros(elements, options);
          });
  if (lookups_->has_lane())
    return lookups_->rows_of(ids, [&](const torch::Tensor& of) { return keys_of(of, ""); });
  return read_now(ids);
}

torch::Tensor Table::look_up_in(const torch::Tensor& weight, const torch::Tensor& ids) const {
  const torch::Tensor index =
      torch::tensor(valid_ids(ids, ""), torch::kLong).view(ids.sizes()).to(weight.device());
  const torch::Tensor has_none = index.lt(0);
  if (!has_none.any().item<bool>()) return torch::embedding(weight, index);
  return torch::embedding(weight, index.clamp_min(0)).masked_fill(has_none.unsqueeze(-1), 0);
}

// Reads the rows where they are, which is possible between steps.
torch::Tensor Table::read_now(const torch::Tensor& ids) {
  if (torch::GradMode::is_enabled())
    fail(ErrorKind::InvalidArgument,
         "the rows of '{}' can only be trained by a Trainer: outside of its steps, look them up without "
         "gradients "
         "(torch::NoGradGuard), or make the table small enough to be replicated "
         "(EmbeddingOptions::replicate_up_to)",
         name_);
  if (!shows_all())
    fail(ErrorKind::InvalidArgument,
         "the rows of '{}' are on {} workers, and this one cannot read those of the others: let all workers "
         "make "
         "this call",
         name_, layout_.world());
  const std::vector<uint64_t> keys = keys_of(ids, "");
  torch::Tensor rows = torch::zeros({static_cast<int64_t>(keys.size()), dim_}, torch::kFloat32);
  auto* to = static_cast<float*>(rows.data_ptr());
  for (const uint64_t key : keys) {
    if (key != kNoKey) {
      const RowLayout::Place place = place_of_key(key);
      read(place.owner, std::span(&place.row, 1), to);
    }
    to += dim_;
  }
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(dim_);
  return rows.view(shape).to(ids.device());
}

Json Table::facts() const {
  return {{"rows", rows_}, {"dim", dim_}, {"placement", std::string(name_of(options_.placement))}};
}

}  // namespace tutti::embedding
