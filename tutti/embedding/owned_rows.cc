#include "tutti/embedding/owned_rows.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/config.h"
#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

constexpr int kLevelBits = 6;

comm::TreeNode node_of(int64_t code) {
  return {static_cast<int>(code & ((int64_t{1} << kLevelBits) - 1)), code >> kLevelBits};
}

// Reads the lists that other tasks send.
class ListReader {
 public:
  ListReader(std::span<const int64_t> list, const std::string& what) : list_(list), what_(what) {}

  int64_t next() {
    if (next_ >= list_.size()) fail(ErrorKind::InvalidArgument, "{} end too early", what_);
    return list_[next_++];
  }
  // The number of entries that follow, each of `width` numbers.
  int64_t count(int64_t width) {
    const int64_t count = next();
    if (count < 0 || count > static_cast<int64_t>(list_.size() - next_) / width)
      fail(ErrorKind::InvalidArgument, "{} announce {} rows, but have {} numbers", what_, count,
           list_.size() - next_);
    return count;
  }
  std::span<const int64_t> take_numbers(int64_t count) {
    const auto taken = list_.subspan(next_, static_cast<size_t>(count));
    next_ += taken.size();
    return taken;
  }
  void end() const {
    if (next_ != list_.size())
      fail(ErrorKind::InvalidArgument, "{} have {} numbers too many", what_, list_.size() - next_);
  }

 private:
  const std::span<const int64_t> list_;
  const std::string what_;
  size_t next_ = 0;
};

void require_owned(const RowShard& shard, int64_t row) {
  const RowLayout& layout = shard.layout();
  const bool is_owned =
      row >= 0 && (layout.grows() ? layout.place_of_key(static_cast<uint64_t>(row)).owner == shard.owner()
                                  : row < layout.count(shard.owner()));
  if (!is_owned)
    fail(ErrorKind::InvalidArgument, "the row {} of the table '{}' is not one of owner {} of {}", row,
         shard.spec().name, shard.owner(), layout.owners());
}

bool is_in(const LaneRange& range, const comm::TreeNode& node) {
  constexpr int kHighest = 20;  // 2^20 lanes, the most
  return node.level <= kHighest && node.index >= 0 && node.index < kMostLanes &&
         comm::first_leaf(node) >= range.begin && comm::first_leaf(node) < range.end;
}

bool is_before(const RowSum& a, const RowSum& b) {
  return a.row < b.row || (a.row == b.row && comm::first_leaf(a.place) < comm::first_leaf(b.place));
}

// The numbers in the heads for one sum.
int64_t width_of_heads(const RowShard& shard) { return shard.layout().grows() ? 3 : 2; }

// Takes the sums of one worker for one table.
RowSumsView view_of(ListReader& heads, std::span<const float> values, const RowShard& shard,
                    const LaneRange& range) {
  const bool grows = shard.layout().grows();
  RowSumsView view{.values = values};
  const int64_t count = heads.count(width_of_heads(shard));
  view.sums.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    RowSum sum{.row = heads.next(), .place = node_of(heads.next())};
    if (grows) sum.lookups = heads.next();
    require_owned(shard, sum.row);
    if (!is_in(range, sum.place) || sum.lookups < 0 ||
        !(view.sums.empty() || is_before(view.sums.back(), sum)))
      fail(ErrorKind::InvalidArgument, "the sum of row {} of '{}' is not in order, or not of lanes {} to {}",
           sum.row, shard.spec().name, range.begin, range.end);
    view.sums.push_back(sum);
  }
  if (static_cast<int64_t>(values.size()) != count * shard.spec().dim)
    fail(ErrorKind::InvalidArgument, "the gradients of '{}' are {} numbers, expected {}", shard.spec().name,
         values.size(), count * shard.spec().dim);
  return view;
}

}  // namespace

int64_t code_of(const comm::TreeNode& node) { return (node.index << kLevelBits) | node.level; }

OwnedRows::OwnedRows(const std::vector<TableSpec>& tables, int owner, int owners, int64_t seed,
                     const RowPlace& place)
    : owner_(owner) {
  for (const TableSpec& table : tables) shards_.emplace_back(table, owner, owners, seed, place);
}

RowShard& OwnedRows::shard_of(const std::string& table, const std::string& what) {
  for (RowShard& shard : shards_) {
    if (shard.spec().name == table) return shard;
  }
  fail(ErrorKind::InvalidArgument, "{} has the table '{}', which this model does not have", what, table);
}

torch::Tensor OwnedRows::read(std::span<const int64_t> asked, RowValues values, RowShard::When when) const {
  ListReader reader(asked, "the ids of rows");
  std::vector<std::span<const int64_t>> of_tables;
  int64_t numbers = 0;
  for (const RowShard& shard : shards_) {
    of_tables.push_back(reader.take_numbers(reader.count(1)));
    for (const int64_t row : of_tables.back()) require_owned(shard, row);
    numbers += static_cast<int64_t>(of_tables.back().size()) * shard.spec().dim;
  }
  reader.end();
  const torch::Tensor rows = torch::empty({numbers}, torch::kFloat32);
  auto* to = static_cast<float*>(rows.data_ptr());
  for (size_t t = 0; t < shards_.size(); ++t) {
    if (values == RowValues::Average)
      shards_[t].read_average(of_tables[t], when, to);
    else if (when == RowShard::When::BeforeLastStep)
      shards_[t].read_before(of_tables[t], to);
    else
      shards_[t].read(of_tables[t], to);
    to += static_cast<int64_t>(of_tables[t].size()) * shards_[t].spec().dim;
  }
  return rows;
}

std::vector<int64_t> OwnedRows::counts_in(std::span<const int64_t> heads) const {
  if (heads.empty()) return std::vector<int64_t>(shards_.size(), 0);  // the worker had no data
  ListReader reader(heads, "the gradients of rows");
  std::vector<int64_t> counts;
  for (const RowShard& shard : shards_) {
    const int64_t width = width_of_heads(shard);
    counts.push_back(reader.count(width));
    reader.take_numbers(counts.back() * width);
  }
  reader.end();
  return counts;
}

int64_t OwnedRows::numbers_of(std::span<const int64_t> heads) const {
  const std::vector<int64_t> counts = counts_in(heads);
  int64_t numbers = 0;
  for (size_t t = 0; t < shards_.size(); ++t) numbers += counts[t] * shards_[t].spec().dim;
  return numbers;
}

std::vector<std::span<const float>> OwnedRows::split(std::span<const int64_t> heads,
                                                     std::span<const float> numbers) const {
  const std::vector<int64_t> counts = counts_in(heads);
  std::vector<std::span<const float>> of_tables;
  for (size_t t = 0; t < shards_.size(); ++t) {
    const auto size = static_cast<size_t>(counts[t] * shards_[t].spec().dim);
    if (size > numbers.size())
      fail(ErrorKind::InvalidArgument, "the gradients of '{}' have {} numbers, expected {}",
           shards_[t].spec().name, numbers.size(), size);
    of_tables.push_back(numbers.subspan(0, size));
    numbers = numbers.subspan(size);
  }
  return of_tables;
}

std::vector<RowSumsView> OwnedRows::sums_in(const RowGradients& gradients, const LaneRange& range) const {
  std::vector<RowSumsView> sums;
  if (gradients.heads.empty()) return sums;
  ListReader heads(gradients.heads, "the gradients of rows");
  if (gradients.values.size() != shards_.size())
    fail(ErrorKind::InvalidArgument, "gradients of {} tables, expected {}", gradients.values.size(),
         shards_.size());
  for (size_t t = 0; t < shards_.size(); ++t)
    sums.push_back(view_of(heads, gradients.values[t], shards_[t], range));
  heads.end();
  return sums;
}

void OwnedRows::add_up(std::span<const std::vector<RowSumsView>> workers, int64_t lanes, double divisor) {
  for (size_t t = 0; t < shards_.size(); ++t) {
    std::vector<RowSumsView> of_table;
    for (const std::vector<RowSumsView>& sums : workers) {
      if (!sums.empty()) of_table.push_back(sums[t]);
    }
    shards_[t].take(sum_workers(of_table, shards_[t].spec().dim, lanes, divisor));
  }
}

void OwnedRows::begin_step(int64_t step) {
  for (RowShard& shard : shards_) shard.begin_step(step);
}

void OwnedRows::keep_log(StepLog& log) {
  log_ = &log;
  for (size_t t = 0; t < shards_.size(); ++t)
    shards_[t].keep_log(log, static_cast<int64_t>(t) * GrowingIds::kArrays);
}

void OwnedRows::take_back() {
  std::vector<int64_t*> arrays;
  for (const RowShard& shard : shards_) {
    const std::vector<int64_t*> more = shard.arrays_of_ids();
    arrays.insert(arrays.end(), more.begin(), more.end());
  }
  log_->take_back(arrays);
  for (RowShard& shard : shards_) shard.read_ids();
}

void OwnedRows::resume_step() {
  log_->read_again();
  put_averaged_steps(log_->averaged_steps());
  for (RowShard& shard : shards_) shard.take_again();
  begin_step(log_->step() - 1);
}

metrics::ExactSum OwnedRows::squares() const {
  metrics::ExactSum sum;
  for (const RowShard& shard : shards_) shard.add_squares(sum);
  return sum;
}

void OwnedRows::update(double factor, double rate, int64_t step) {
  for (RowShard& shard : shards_) shard.update(factor, rate, step);
}

void OwnedRows::skip_step() {
  for (RowShard& shard : shards_) shard.skip_step();
}

int64_t OwnedRows::averaged_steps() const { return shards_.empty() ? 0 : shards_.front().averaged_steps(); }

void OwnedRows::put_averaged_steps(int64_t steps) {
  for (RowShard& shard : shards_) shard.put_averaged_steps(steps);
}

void OwnedRows::remember_steps() {
  for (RowShard& shard : shards_) shard.remember_steps();
}

std::vector<uint64_t> OwnedRows::checksum() const {
  std::vector<uint64_t> sums;
  for (const RowShard& shard : shards_) {
    const auto [first, second] = shard.checksum();
    sums.push_back(first);
    sums.push_back(second);
  }
  return sums;
}

std::map<std::string, GrowthCounts> OwnedRows::counts() const {
  std::map<std::string, GrowthCounts> counts;
  for (const RowShard& shard : shards_) {
    if (shard.layout().grows()) counts[shard.spec().name] = shard.counts();
  }
  return counts;
}

double relative_rate(double rate, const OptimizerOptions& model) {
  const double of_options = learning_rate_of(RowOptimizerOptions(model));
  return of_options > 0 ? rate / of_options : 1;
}

std::string joined_checksum(std::span<const std::vector<uint64_t>> owners) {
  std::vector<uint64_t> total(owners.empty() ? 0 : owners[0].size(), 0);
  for (const std::vector<uint64_t>& sums : owners) {
    TUTTI_CHECK(sums.size() == total.size(), "{} sums, expected {}", sums.size(), total.size());
    for (size_t i = 0; i < sums.size(); ++i) total[i] += sums[i];
  }
  std::string text;
  for (const uint64_t number : total) text += fmt::format("{:016x}", number);
  return text;
}

}  // namespace tutti::embedding
