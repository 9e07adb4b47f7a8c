#include "tutti/embedding/table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

std::string names_in(const Batch& batch) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch.tensors()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

constexpr int64_t kPadding = -1;
constexpr int64_t kNoRow = -1;

// Returns the greatest number up to which floating-point ids of this type are exact.
double exact_limit(const torch::Tensor& ids) {
  constexpr double kExactFloat = 16777216;           // 2^24
  constexpr double kExactDouble = 9007199254740992;  // 2^53
  return ids.scalar_type() == torch::kDouble ? kExactDouble : kExactFloat;
}

// Returns the ids as int64 on the CPU. Floats, as some tables have them, hold whole numbers exactly up to a
// limit; beyond it an id may have become another one.
torch::Tensor whole_numbers(const torch::Tensor& ids, const std::string& table, const std::string& column) {
  if (!ids.is_floating_point()) return ids.to(torch::kCPU, torch::kLong).contiguous();
  const double limit = exact_limit(ids);
  const torch::Tensor numbers = ids.to(torch::kCPU, torch::kDouble).contiguous();
  const auto* number = static_cast<const double*>(numbers.data_ptr());
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    if (number[i] != std::floor(number[i]) || std::abs(number[i]) > limit)
      fail(ErrorKind::InvalidArgument,
           "{} has the id {} for the table '{}'; floating-point ids have to be whole numbers of at "
           "most {:.0f}",
           column.empty() ? "a lookup" : fmt::format("column '{}'", column), number[i], table, limit);
  }
  return numbers.to(torch::kLong);
}

void require_sensible(int64_t rows, int64_t dim, const TableOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (rows < (options.dynamic ? 0 : 1) || dim < 1 || rows > kMost || dim > kMost / std::max<int64_t>(1, rows))
    fail(ErrorKind::InvalidArgument, "an embedding with {} rows of {} numbers", rows, dim);
  if (!(options.initial_scale >= 0) || !std::isfinite(options.initial_scale))
    fail(ErrorKind::InvalidArgument, "the initial scale of an embedding is {}, expected 0 or more",
         options.initial_scale);
  if (options.admit_after < 1 || options.evict_unused_for < 0 || options.evict_below < 0)
    fail(ErrorKind::InvalidArgument,
         "an embedding that admits ids after {} lookups, and evicts rows that were unused for {} steps, or "
         "with fewer than {} lookups: admit_after must be 1 or more, the others 0 or more",
         options.admit_after, options.evict_unused_for, options.evict_below);
  const bool grows = options.admit_after > 1 || options.evict_unused_for > 0 || options.evict_below > 0 ||
                     options.when_full != WhenFull::Refuse;
  if (grows && !options.dynamic)
    fail(ErrorKind::InvalidArgument,
         "admit_after, evict_unused_for, evict_below and when_full are for embeddings with .dynamic = true");
  if (options.dynamic && options.bad_ids == BadIds::Clamp)
    fail(ErrorKind::InvalidArgument, "a dynamic embedding has no last row to which ids could be clamped");
}

}  // namespace

Table::Table(int64_t rows, int64_t dim, const TableOptions& options, bool may_be_padded)
    : rows_(rows), dim_(dim), options_(options), may_be_padded_(may_be_padded), lookups_("embedding", dim) {
  require_sensible(rows, dim, options);
}

// The table as errors call it, which has no name before it is part of a training.
std::string Table::label() const {
  return columns_.empty() ? fmt::format("Embedding({}, {})", rows_, dim_) : name_;
}

TableSpec Table::spec(const OptimizerOptions& optimizer) const {
  return {.name = name_,
          .rows = options_.dynamic ? 0 : rows_,
          .dim = dim_,
          .placement = options_.placement,
          .initial_scale = options_.initial_scale,
          .growth = {.most_rows = options_.dynamic ? rows_ : 0,
                     .when_full = options_.when_full,
                     .admit_after = options_.admit_after,
                     .evict_unused_for = options_.evict_unused_for,
                     .evict_below = options_.evict_below},
          .optimizer = options_.optimizer.value_or(RowOptimizerOptions(optimizer))};
}

void Table::set_name(const std::string& name) {
  if (name == name_ && !columns_.empty()) return;
  name_ = name;
  columns_ = options_.columns;
  if (columns_.empty()) columns_ = {name.substr(name.rfind('.') + 1)};
  lookups_ = Lookups(name, dim_);
}

void Table::spread(int owners) {
  layout_ = RowLayout(options_.placement, options_.dynamic ? 0 : rows_, owners);
  direct_ = {};
  read_now_ = {};
  alone_.reset();
  is_spread_ = true;
}

void Table::show(std::vector<torch::Tensor> of_owners) {
  direct_ = {.of_owners = std::move(of_owners), .row_bits = layout_.row_bits()};
}

RowShard& Table::alone() {
  if (is_spread_)
    fail(ErrorKind::InvalidArgument,
         "the rows of '{}' are spread over the tasks of a training: load them before it begins", label());
  if (!alone_) {
    layout_ = RowLayout(options_.placement, options_.dynamic ? 0 : rows_, 1);
    alone_ = std::make_unique<RowShard>(spec(torch::optim::SGDOptions(0)), 0, 1, 0);
    read_now_ = [this](std::span<const uint64_t> keys) {
      torch::Tensor rows = torch::zeros({static_cast<int64_t>(keys.size()), dim_}, torch::kFloat32);
      auto* to = static_cast<float*>(rows.data_ptr());
      for (const uint64_t key : keys) {
        const int64_t row = key == kNoKey ? 0 : layout_.place_of_key(key).row;
        if (key != kNoKey) alone_->read({&row, 1}, to);
        to += dim_;
      }
      return rows;
    };
  }
  return *alone_;
}

// Returns the id that is used instead of one that is none of a row.
int64_t Table::other_id(int64_t id, int64_t example, const Origin& from) const {
  if (may_be_padded_ && id == kPadding) return kNoRow;
  if (options_.bad_ids == BadIds::Drop) return kNoRow;
  if (options_.bad_ids == BadIds::Clamp) return std::clamp<int64_t>(id, 0, rows_ - 1);
  const std::string where =
      from.batch == nullptr
          ? fmt::format("a lookup has the id {} in its row {}", id, example)
          : fmt::format("column '{}' has the id {} in {}", from.column, id, from.batch->describe(example));
  const std::string what =
      options_.dynamic
          ? fmt::format(
                "the table '{}' has rows for ids from 0, but {}; EmbeddingOptions::bad_ids can drop such ids",
                label(), where)
          : fmt::format(
                "the table '{}' has {} rows, but {}; EmbeddingOptions::bad_ids can clamp or drop such ids",
                label(), rows_, where);
  if (from.batch == nullptr) throw BadId(what, example);
  throw Error(ErrorKind::InvalidArgument, what);
}

template <class Visit>
void Table::for_each_id(const torch::Tensor& ids, const Origin& from, const Visit& visit_id) const {
  const torch::Tensor whole = whole_numbers(ids, label(), from.column);
  const auto* id = static_cast<const int64_t*>(whole.data_ptr());
  const int64_t per_example = ids.dim() == 0 || ids.numel() == 0 ? 1 : ids.numel() / ids.size(0);
  const int64_t end = options_.dynamic ? std::numeric_limits<int64_t>::max() : rows_;
  for (int64_t i = 0; i < whole.numel(); ++i) {
    const bool is_good = id[i] >= 0 && id[i] < end;
    visit_id(static_cast<size_t>(i), is_good ? id[i] : other_id(id[i], i / per_example, from));
  }
}

std::vector<uint64_t> Table::keys_of(const torch::Tensor& ids, const Origin& from) const {
  std::vector<uint64_t> keys(static_cast<size_t>(ids.numel()));
  for_each_id(ids, from, [&](size_t i, int64_t id) { keys[i] = id == kNoRow ? kNoKey : layout_.key_of(id); });
  return keys;
}

std::vector<Lookups::Column> Table::columns_in(const Batch& batch) const {
  std::vector<Lookups::Column> columns;
  if (batch.size() == 0) return columns;
  for (const std::string& name : columns_) {
    if (!batch.has(name))
      fail(ErrorKind::InvalidArgument,
           "the table '{}' looks up the ids of the column '{}', which the batch does not have; name its "
           "columns in EmbeddingOptions::columns. The batch has: {}",
           name_, name, names_in(batch));
    const torch::Tensor& ids = batch[name];
    columns.push_back({ids, keys_of(ids, {&batch, name})});
  }
  return columns;
}

torch::Tensor Table::look_up(const torch::Tensor& ids, const torch::Tensor& weight) {
  const auto own = [&] { return weight.defined() ? look_up_in(weight, ids) : look_up_rows(ids); };
  return replacement_ ? replacement_(ids, own) : own();
}

torch::Tensor Table::look_up_rows(const torch::Tensor& ids) {
  if (!is_spread_) alone();
  if (lookups_.has_lane())
    return lookups_.rows_of(ids, [&](const torch::Tensor& of) { return keys_of(of, {}); });
  return look_up_now(ids);
}

torch::Tensor Table::look_up_in(const torch::Tensor& weight, const torch::Tensor& ids) const {
  torch::Tensor index = torch::empty({ids.numel()}, torch::kLong);
  auto* to = static_cast<int64_t*>(index.data_ptr());
  bool has_none = false;
  for_each_id(ids, {}, [&](size_t i, int64_t id) {
    to[i] = id;
    has_none = has_none || id == kNoRow;
  });
  index = index.view(ids.sizes()).to(weight.device());
  if (!has_none) return torch::embedding(weight, index);
  return torch::embedding(weight, index.clamp_min(0)).masked_fill(index.lt(0).unsqueeze(-1), 0);
}

// The counterpart of for_each_id() and whole_numbers().
torch::Tensor Table::look_up_by_operators(const torch::Tensor& weight, const torch::Tensor& ids) const {
  torch::Tensor index = ids.to(torch::kLong);
  if (index.device() != weight.device()) index = index.to(weight.device());
  torch::Tensor has_none;
  if (may_be_padded_) has_none = index.eq(kPadding);
  if (options_.bad_ids == BadIds::Drop) has_none = index.lt(0).logical_or(index.ge(rows_));
  if (options_.bad_ids == BadIds::Clamp) index = index.clamp(0, rows_ - 1);
  if (has_none.defined()) index = index.masked_fill(has_none, 0);
  if (ids.is_floating_point()) {
    const torch::Tensor is_exact = ids.eq(ids.floor()).logical_and(ids.abs().le(exact_limit(ids)));
    index = index.masked_fill(is_exact.logical_not().to(index.device()), rows_);  // a bad id
  }
  const torch::Tensor found = torch::embedding(weight, index);
  return has_none.defined() ? found.masked_fill(has_none.unsqueeze(-1), 0) : found;
}

torch::Tensor Table::look_up_now(const torch::Tensor& ids) {
  if (torch::GradMode::is_enabled())
    fail(ErrorKind::InvalidArgument,
         "the rows of '{}' can only be trained by a Trainer, or in a Loop after "
         "DistributedOptimizer::fetch(): "
         "outside of their steps, look them up without gradients (torch::NoGradGuard), or make the table "
         "small enough to be replicated "
         "(EmbeddingOptions::replicate_up_to)",
         label());
  if (!is_direct() && !read_now_)
    fail(ErrorKind::InvalidArgument,
         "the rows of '{}' are on {} workers, and this one cannot read the rows of the others: let all "
         "workers "
         "make this call of the Trainer or the Loop",
         label(), layout_.owners());
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(dim_);
  const std::vector<uint64_t> keys = keys_of(ids, {});
  const torch::Tensor rows = is_direct() ? read_shown(keys) : read_now_(keys);
  return rows.view(shape).to(ids.device());
}

torch::Tensor Table::read_shown(std::span<const uint64_t> keys) const {
  Lookups lookups(name_, dim_);
  lookups.add_lane({{torch::Tensor(), std::vector<uint64_t>(keys.begin(), keys.end())}});
  lookups.read_from(direct_);
  return lookups.all_rows();
}

}  // namespace tutti::embedding
