#include "tutti/embedding/row_shard.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/hashes.h"
#include "tutti/params/parameters.h"

namespace tutti::embedding {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 40;  // in a table
constexpr size_t kAheadOfReads = 8;

std::vector<int64_t> used_slots(const IdSlots& ids) {
  std::vector<int64_t> slots;
  for (int64_t slot = 0; slot < ids.slots(); ++slot) {
    if (ids.number_in(slot) != IdSlots::kNone) slots.push_back(slot);
  }
  return slots;
}

torch::Tensor history_of(const IdSlots& ids, const std::vector<int64_t>& slots) {
  const torch::Tensor history = torch::empty({static_cast<int64_t>(slots.size()), 2}, torch::kLong);
  auto* number = static_cast<int64_t*>(history.data_ptr());
  for (const int64_t slot : slots) {
    *number++ = ids.lookups(slot);
    *number++ = ids.last_step(slot);
  }
  return history;
}

// Returns the whole numbers in a tensor, which may be undefined; a history has two for each id.
std::span<const int64_t> numbers_in(const torch::Tensor& tensor, const std::string& table,
                                    const std::optional<torch::Tensor>& ids = {}) {
  if (!tensor.defined()) return {};
  const bool fits = tensor.scalar_type() == torch::kLong && tensor.is_contiguous() &&
                    tensor.device().is_cpu() &&
                    (!ids || tensor.numel() == 2 * (ids->defined() ? ids->numel() : 0));
  if (!fits)
    fail(ErrorKind::InvalidArgument, "the ids or counts of the table '{}' are {}", table, describe(tensor));
  return {static_cast<const int64_t*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

}  // namespace

Json to_json(const TableSpec& spec) {
  return {{"name", spec.name},
          {"rows", spec.rows},
          {"dim", spec.dim},
          {"placement", std::string(name_of(spec.placement))},
          {"initial_scale", spec.initial_scale},
          {"growth", to_json(spec.growth)},
          {"optimizer", to_json(spec.optimizer)},
          {"average", spec.average}};
}

TableSpec spec_of_json(const Json& json, std::span<const ElementwiseOptimizer> own) {
  const std::string what = "a table";
  TableSpec spec{.name = value_in<std::string>(json, "name", what),
                 .rows = value_in<int64_t>(json, "rows", what),
                 .dim = value_in<int64_t>(json, "dim", what),
                 .placement = parse_placement(value_in<std::string>(json, "placement", what), what),
                 .initial_scale = value_in<double>(json, "initial_scale", what),
                 .growth = growth_of_json(json.at("growth")),
                 .optimizer = row_optimizer_of_json(json.at("optimizer"), own),
                 .average = value_in<double>(json, "average", what)};
  if (spec.rows < 0 || spec.dim < 1 || spec.dim > kMostNumbers / std::max<int64_t>(1, spec.rows))
    fail(ErrorKind::InvalidArgument, "a table of {} rows of {} numbers", spec.rows, spec.dim);
  if (!(spec.average >= 0 && spec.average < 1))
    fail(ErrorKind::InvalidArgument, "the decay of the moving average of a table is {}", spec.average);
  return spec;
}

RowShard::RowShard(TableSpec spec, int owner, int owners, int64_t seed, const RowPlace& place)
    : spec_(std::move(spec)),
      place_(place),
      owner_(owner),
      layout_(spec_.placement, spec_.rows, owners),
      seed_(seed_of_table(seed, spec_.name)),
      memory_(layout_.grows() && !place.has_all ? torch::empty({0}, torch::kFloat32)
                                                : memory_for(spec_.dim, torch::kFloat32)),
      values_(layout_.grows() ? memory_.view({-1, spec_.dim})
                              : memory_.narrow(0, 0, layout_.count(owner) * spec_.dim)
                                    .view({layout_.count(owner), spec_.dim})),
      data_(static_cast<float*>(values_.data_ptr())),
      optimizer_(spec_.name, spec_.optimizer, values_.size(0), spec_.dim, maker()) {
  if (spec_.average > 0) average_.emplace(spec_.average, values_.size(0), spec_.dim, maker());
  if (layout_.grows()) {
    ids_.emplace(spec_.growth, place.has_all ? place : RowPlace());
    return;
  }
  for (int64_t row = 0; row < values_.size(0) && !place.has_rows; ++row) initialise(row);
}

// Every owner allocates as many numbers, since shared memory has the same parts on all. The memory that has
// the rows of another owner may be larger, if the table grows.
torch::Tensor RowShard::memory_for(int64_t width, torch::ScalarType type) const {
  const int64_t rows = layout_.grows() ? IdSlots::kSmallest : std::max<int64_t>(layout_.count(0), 1);
  return place_.allocate ? place_.allocate(rows * width, type) : torch::empty({rows * width}, type);
}

MakeRows RowShard::maker() const {
  if (!place_.has_all) return {};
  return [this](const std::vector<int64_t>& shape, torch::ScalarType type, double initial) {
    const int64_t width = shape.size() == 1 ? 1 : shape[1];
    const torch::Tensor rows = memory_for(width, type).narrow(0, 0, shape[0] * width).view(shape);
    if (!place_.has_rows) rows.fill_(initial);
    return rows;
  };
}

void RowShard::keep_log(StepLog& log, int64_t first) {
  log_ = &log;
  if (ids_) ids_->keep_log(&log, first);
}

std::vector<int64_t*> RowShard::arrays_of_ids() const {
  if (!ids_) return std::vector<int64_t*>(GrowingIds::kArrays, nullptr);
  const auto arrays = ids_->arrays();
  return {arrays.begin(), arrays.end()};
}

void RowShard::read_ids() {
  if (ids_) ids_->read_memory();
}

std::pair<int64_t, int64_t> RowShard::room(int64_t more) const {
  if (!ids_) return {0, 0};
  return {ids_->rows().slots() + more, ids_->waiting().slots() + more};
}

void RowShard::reserve(const std::pair<int64_t, int64_t>& room) {
  if (!ids_) return;
  ids_->reserve(room.first, room.second);
  if (room.first > values_.size(0)) enlarge(std::max(room.first, 2 * values_.size(0)));
}

std::pair<int64_t, int64_t> RowShard::words_of_log(int64_t rows) const {
  return {StepLog::words_of(rows, spec_.dim, ids_.has_value()),
          ids_ ? StepLog::words_of_entries(ids_->most_changes(rows)) : 0};
}

void RowShard::initialise(int64_t slot) {
  make_initial_row(seed_, id_of(row_in(slot)), spec_.initial_scale,
                   std::span(at(slot), static_cast<size_t>(spec_.dim)));
}

// A row that does not exist, of a table that grows.
void RowShard::read_missing(int64_t row, float* to) const {
  const std::span<float> numbers(to, static_cast<size_t>(spec_.dim));
  if (ids_->shows_initial_values(row))
    make_initial_row(seed_, id_of(row), spec_.initial_scale, numbers);
  else
    std::fill(numbers.begin(), numbers.end(), 0.0F);
}

void RowShard::read(std::span<const int64_t> rows, float* to) const {
  const size_t bytes = static_cast<size_t>(spec_.dim) * sizeof(float);
  for (size_t i = 0; i < rows.size(); ++i, to += spec_.dim) {
    if (!ids_ && i + kAheadOfReads < rows.size()) fetch_for_reading(at(rows[i + kAheadOfReads]), spec_.dim);
    const int64_t slot = slot_of(rows[i]);
    if (slot == IdSlots::kNone)
      read_missing(rows[i], to);
    else
      std::memcpy(to, at(slot), bytes);
  }
}

void RowShard::read_before(std::span<const int64_t> rows, float* to) const {
  read(rows, to);
  for (size_t i = 0; i < rows.size(); ++i, to += spec_.dim) {
    const auto found = std::lower_bound(before_->rows.begin(), before_->rows.end(), rows[i]);
    if (found == before_->rows.end() || *found != rows[i]) continue;
    const auto at = (found - before_->rows.begin()) * spec_.dim;
    std::copy_n(before_->values.begin() + at, spec_.dim, to);
  }
}

void RowShard::read_average(std::span<const int64_t> rows, When when, float* to) const {
  if (!average_) return when == When::Now ? read(rows, to) : read_before(rows, to);
  for (const int64_t row : rows) {
    const int64_t slot = slot_of(row);
    if (slot == IdSlots::kNone)
      read_missing(row, to);
    else
      average_->read(slot, at(slot), when == When::BeforeLastStep, to);
    to += spec_.dim;
  }
}

// Rows of the step, and those that were dropped for them, are changed by it.
void RowShard::remember(const std::vector<GrowingIds::Dropped>& dropped) {
  std::vector<std::pair<int64_t, int64_t>> rows;  // and their slots
  for (size_t i = 0; i < updated_.size(); ++i) rows.emplace_back(gradients_.sums[i].row, updated_[i]);
  for (const auto& [row, slot] : dropped) rows.emplace_back(row, slot);
  std::sort(rows.begin(), rows.end());
  before_->rows.clear();
  before_->values.resize(rows.size() * static_cast<size_t>(spec_.dim));
  float* to = before_->values.data();
  for (const auto& [row, slot] : rows) {
    before_->rows.push_back(row);
    if (slot == IdSlots::kNone)
      read_missing(row, to);
    else
      std::copy_n(at(slot), spec_.dim, to);
    to += spec_.dim;
  }
}

void RowShard::take(RowSums gradients) {
  gradients_ = std::move(gradients);
  if (log_ == nullptr) {
    means_ = {.values = gradients_.values};
    return;
  }
  means_ = log_->write(gradients_, ids_.has_value());
  gradients_.values = {};
}

void RowShard::take_again() { std::tie(gradients_, means_) = log_->read(spec_.dim, ids_.has_value()); }

void RowShard::begin_step(int64_t step) {
  updated_.clear();
  if (!ids_) {
    for (const RowSum& sum : gradients_.sums) updated_.push_back(sum.row);
    if (before_) remember({});
    return;
  }
  if (log_ == nullptr) return change_ids(step);
  const bool is_new = log_->change_ids([&] {
    change_ids(step);
    std::copy(updated_.begin(), updated_.end(), means_.slots.begin());
  });
  if (!is_new) updated_.assign(means_.slots.begin(), means_.slots.end());
}

void RowShard::change_ids(int64_t step) {
  std::vector<int64_t> rows;
  std::vector<int64_t> lookups;
  for (const RowSum& sum : gradients_.sums) {
    rows.push_back(sum.row);
    lookups.push_back(sum.lookups);
  }
  GrowingIds::Counted counted = ids_->count(rows, lookups, step);
  make_room();
  for (const auto& [row, slot] : counted.dropped) {
    if (saved_) dropped_.push_back(id_of(row));
  }
  if (before_) {
    // The new rows are remembered as those that do not exist.
    std::vector<int64_t> slots = counted.slots;
    const std::set<int64_t> made(counted.made.begin(), counted.made.end());
    for (int64_t& slot : slots) slot = made.contains(slot) ? IdSlots::kNone : slot;
    updated_ = std::move(slots);
    remember(counted.dropped);
  }
  for (const int64_t slot : counted.made) {
    initialise(slot);
    optimizer_.begin_row(slot);
    if (average_) average_->begin_row(slot);
    mark_changed(slot);
  }
  updated_ = std::move(counted.slots);
}

void RowShard::add_squares(metrics::ExactSum& to) const {
  const float* gradient = means_.values.data();
  for (const int64_t slot : updated_) {
    double squares = 0;
    for (int64_t i = 0; i < spec_.dim; ++i)
      squares += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    if (slot != IdSlots::kNone) to.add(squares);
    gradient += spec_.dim;
  }
}

void RowShard::update(double factor, double rate, int64_t step) {
  const size_t block = log_ == nullptr ? updated_.size() : StepLog::rows_in_block(row_bytes());
  const std::vector<RowArray> arrays = log_ == nullptr ? std::vector<RowArray>() : this->arrays();
  const auto dim = static_cast<size_t>(spec_.dim);
  const auto by = static_cast<float>(factor);
  std::vector<float> multiplied;
  for (size_t begin = 0; begin < updated_.size(); begin += block) {
    const auto slots = std::span(updated_).subspan(begin, std::min(block, updated_.size() - begin));
    const auto change_block = [&] {
      const auto means = means_.values.subspan(begin * dim, slots.size() * dim);
      if (factor == 1) return change(slots, means, rate, step);
      multiplied.assign(means.begin(), means.end());
      for (float& value : multiplied) value *= by;
      change(slots, multiplied, rate, step);
    };
    log_ == nullptr ? change_block() : log_->change(arrays, slots, change_block);
  }
  if (saved_) {
    for (const int64_t slot : updated_) {
      if (slot != IdSlots::kNone) mark_changed(slot);
    }
  }
  end_step();
}

void RowShard::change(std::span<const int64_t> slots, std::span<const float> gradients, double rate,
                      int64_t step) {
  for (const int64_t slot : slots) {
    if (average_ && slot != IdSlots::kNone) average_->before_change(slot, at(slot));
  }
  optimizer_.step(values_, slots, gradients, learning_rate_of(spec_.optimizer) * rate, step);
}

size_t RowShard::row_bytes() const {
  size_t bytes = 0;
  for (const RowArray& array : arrays()) bytes += array.width;
  return bytes;
}

std::vector<RowArray> RowShard::arrays() const {
  std::vector<RowArray> arrays;
  const auto add = [&](const torch::Tensor& rows) {
    const size_t numbers = rows.dim() == 1 ? 1 : static_cast<size_t>(spec_.dim);
    arrays.push_back({static_cast<std::byte*>(rows.data_ptr()), numbers * rows.element_size()});
  };
  add(values_);
  for (const RowOptimizer::Slot& slot : optimizer_.slots()) add(slot.tensor);
  if (average_) add(average_->kept());
  if (average_) add(average_->kept_after());
  return arrays;
}

void RowShard::skip_step() { end_step(); }

void RowShard::end_step() {
  if (average_) average_->count_step();
  forget_step();
}

void RowShard::forget_step() {
  gradients_ = {};
  means_ = {};
  updated_.clear();
}

void RowShard::make_room() {
  constexpr int64_t kSmallest = 1024;
  if (slots() <= values_.size(0)) return;
  const int64_t rows = std::max({slots(), 2 * values_.size(0), kSmallest});
  enlarge(rows);
}

void RowShard::enlarge(int64_t slots) {
  const RowPlace place = place_.has_all ? place_ : RowPlace();
  values_ = enlarged(place, values_, slots);
  data_ = static_cast<float*>(values_.data_ptr());
  optimizer_.resize(slots, place);
  if (average_) average_->resize(slots, place);
}

void RowShard::mark_changed(int64_t slot) {
  if (!saved_) return;
  const auto index = static_cast<size_t>(slot);
  if (index >= changed_.size()) changed_.resize(std::max(index + 1, static_cast<size_t>(values_.size(0))), 0);
  changed_[index] = 1;
}

void RowShard::mark_saved() {
  saved_ = true;
  changed_.assign(static_cast<size_t>(values_.size(0)), 0);
  dropped_.clear();
}

double RowShard::changed_share() const {
  if (!saved_) return 1;
  const auto changed = static_cast<double>(std::count(changed_.begin(), changed_.end(), 1) +
                                           static_cast<int64_t>(dropped_.size()));
  const int64_t rows = ids_ ? ids_->rows().size() : slots();
  return rows == 0 ? 0 : std::min(1.0, changed / static_cast<double>(rows));
}

void RowShard::evict(int64_t step) {
  if (!ids_) return;
  for (const int64_t row : ids_->evict(step)) {
    if (saved_) dropped_.push_back(id_of(row));
  }
}

RowShard::State RowShard::state(Which which) const {
  State state;
  state.fields.push_back({"", values_});
  for (const RowOptimizer::Slot& slot : optimizer_.slots()) state.fields.push_back({slot.name, slot.tensor});
  if (average_) {
    state.average = average_->kept();
    state.average_after = average_->kept_after();
  }
  if (!ids_ && which == Which::All) return state;
  std::vector<int64_t> slots;
  std::vector<int64_t> ids;
  for (int64_t slot = 0; slot < this->slots(); ++slot) {
    const auto index = static_cast<size_t>(slot);
    const bool is_wanted = which == Which::All || (index < changed_.size() && changed_[index] != 0);
    if (row_in(slot) == IdSlots::kNone || !is_wanted) continue;
    slots.push_back(slot);
    ids.push_back(id_of(row_in(slot)));
  }
  state.ids = torch::tensor(ids, torch::kLong);
  const torch::Tensor index = torch::tensor(slots, torch::kLong);
  for (auto& [name, tensor] : state.fields) tensor = tensor.index_select(0, index);
  if (average_) {
    state.average = state.average.index_select(0, index);
    state.average_after = state.average_after.index_select(0, index);
  }
  if (!ids_) return state;
  state.history = history_of(ids_->rows(), slots);
  const std::vector<int64_t> waiting = used_slots(ids_->waiting());
  std::vector<int64_t> waiting_ids;
  for (const int64_t slot : waiting) waiting_ids.push_back(id_of(ids_->waiting().number_in(slot)));
  state.waiting_ids = torch::tensor(waiting_ids, torch::kLong);
  state.waiting_history = history_of(ids_->waiting(), waiting);
  if (which == Which::Changed) state.dropped_ids = torch::tensor(dropped_, torch::kLong);
  return state;
}

RowShard::State RowShard::weights(RowValues values) const {
  State state = this->state(Which::All);
  state.fields.resize(1);
  state.average = state.average_after = torch::Tensor();
  if (values == RowValues::Last || !average_) return state;
  std::vector<int64_t> rows;
  for (int64_t slot = 0; slot < slots(); ++slot) {
    if (row_in(slot) != IdSlots::kNone) rows.push_back(row_in(slot));
  }
  torch::Tensor& averaged = state.fields.front().tensor;
  averaged = torch::empty({static_cast<int64_t>(rows.size()), spec_.dim}, torch::kFloat32);
  read_average(rows, When::Now, static_cast<float*>(averaged.data_ptr()));
  return state;
}

void RowShard::reset() {
  if (ids_) ids_->clear();
  if (average_) average_->reset();
  saved_ = false;
  changed_.clear();
  dropped_.clear();
  forget_step();
}

void RowShard::put(const State& part, bool changed) {
  put_ids(part, changed);
  const std::span<const int64_t> ids = numbers_in(part.ids, spec_.name);
  for (const store::NamedTensor& field : part.fields) put_field(field, ids);
  if (average_ && part.average.defined()) put_average(part, ids);
}

void RowShard::put_ids(const State& part, bool changed) {
  const bool only_grows = part.history.defined() || part.waiting_ids.defined() || part.dropped_ids.defined();
  if (only_grows && !ids_)
    fail(ErrorKind::InvalidArgument, "the checkpoint has the table '{}' as one that grows, but it does not",
         spec_.name);
  const auto for_each_own = [&](const torch::Tensor& of,
                                const std::function<void(int64_t, size_t)>& visit_row) {
    const std::span<const int64_t> ids = numbers_in(of, spec_.name);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || (spec_.rows > 0 && ids[i] >= spec_.rows))
        fail(ErrorKind::InvalidArgument, "the checkpoint has the id {} of the table '{}'", ids[i],
             spec_.name);
      const RowLayout::Place place = layout_.place_of(ids[i]);
      if (place.owner != owner_) continue;
      visit_row(place.row, i);
      if (log_ != nullptr) log_->keep_changes();
    }
  };
  for_each_own(part.dropped_ids, [&](int64_t row, size_t) {
    ids_->drop(row);
    if (changed) dropped_.push_back(id_of(row));
  });
  const auto history = numbers_in(part.history, spec_.name, part.ids);
  for_each_own(part.ids, [&](int64_t row, size_t i) {
    if (ids_ && !history.empty()) {
      ids_->drop(row);
      ids_->put(row, history[2 * i], history[2 * i + 1]);
      make_room();
      optimizer_.begin_row(slot_of(row));
      if (average_) average_->begin_row(slot_of(row));
    }
    if (changed) mark_changed(slot_of(row));
  });
  const auto waiting = numbers_in(part.waiting_history, spec_.name, part.waiting_ids);
  for_each_own(part.waiting_ids,
               [&](int64_t row, size_t i) { ids_->put_waiting(row, waiting[2 * i], waiting[2 * i + 1]); });
}

void RowShard::put_field(const store::NamedTensor& field, std::span<const int64_t> ids) {
  torch::Tensor to = field.name.empty() ? values_ : torch::Tensor();
  for (const RowOptimizer::Slot& slot : optimizer_.slots()) {
    if (slot.name == field.name) to = slot.tensor;
  }
  if (!to.defined())
    fail(ErrorKind::InvalidArgument,
         "the checkpoint has '{}' for the table '{}', which its optimiser does not keep; resume with the "
         "optimiser of the checkpoint, or begin with its weights alone (--resume weights)",
         field.name, spec_.name);
  const int64_t width = to.dim() == 1 ? 1 : spec_.dim;
  if (field.tensor.numel() != static_cast<int64_t>(ids.size()) * width || field.tensor.dim() != to.dim())
    fail(ErrorKind::InvalidArgument, "'{}' of the table '{}' has the shape {} for {} rows of {}", field.name,
         spec_.name, describe(field.tensor), ids.size(), spec_.dim);
  const torch::Tensor from = field.tensor.to(torch::kCPU, torch::kFloat32).contiguous();
  const auto* numbers = static_cast<const float*>(from.data_ptr());
  auto* const own = static_cast<float*>(to.data_ptr());
  for (const int64_t id : ids) {
    const RowLayout::Place place = layout_.place_of(id);
    if (place.owner == owner_) std::copy_n(numbers, width, own + slot_of(place.row) * width);
    numbers += width;
  }
}

void RowShard::put_average(const State& part, std::span<const int64_t> ids) {
  const torch::Tensor from = part.average.to(torch::kCPU, torch::kFloat32).contiguous();
  const std::span<const int64_t> after = numbers_in(part.average_after, spec_.name);
  if (from.dim() != 2 || from.size(0) != static_cast<int64_t>(ids.size()) || from.size(1) != spec_.dim ||
      after.size() != ids.size())
    fail(ErrorKind::InvalidArgument, "the moving average of the table '{}' is {} for {} rows of {}",
         spec_.name, describe(from), ids.size(), spec_.dim);
  const auto* numbers = static_cast<const float*>(from.data_ptr());
  for (size_t i = 0; i < ids.size(); ++i, numbers += spec_.dim) {
    const RowLayout::Place place = layout_.place_of(ids[i]);
    if (place.owner == owner_) average_->put(slot_of(place.row), numbers, after[i]);
  }
}

std::pair<uint64_t, uint64_t> RowShard::checksum() const {
  std::pair<uint64_t, uint64_t> sums;
  for (int64_t slot = 0; slot < slots(); ++slot) {
    const int64_t row = row_in(slot);
    if (row == IdSlots::kNone) continue;
    const uint64_t numbers =
        xxh64({reinterpret_cast<const char*>(at(slot)), static_cast<size_t>(spec_.dim) * sizeof(float)});
    const uint64_t hash = mix_bits(numbers ^ mix_bits(static_cast<uint64_t>(id_of(row)) + 1));
    sums.first += hash;
    sums.second += mix_bits(hash ^ kGoldenBits);
  }
  return sums;
}

}  // namespace tutti::embedding
