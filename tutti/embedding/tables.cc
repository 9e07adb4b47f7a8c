#include "tutti/embedding/tables.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::embedding {
namespace {

// Returns for each owner the first of its rows in the index, and the end of the last: keys are sorted by
// owner.
std::vector<int64_t> begins_of(const RowLayout& layout, const std::vector<uint64_t>& keys) {
  std::vector<int64_t> begins = {0};
  for (int owner = 1; owner < layout.owners(); ++owner)
    begins.push_back(std::lower_bound(keys.begin() + begins.back(), keys.end(), layout.first_key(owner)) -
                     keys.begin());
  begins.push_back(static_cast<int64_t>(keys.size()));
  return begins;
}

void append_rows(const RowLayout& layout, std::span<const uint64_t> keys, std::vector<int64_t>& to) {
  to.push_back(static_cast<int64_t>(keys.size()));
  for (const uint64_t key : keys) to.push_back(layout.place_of_key(key).row);
}

// Gives each owner the sums of its rows; RowSum::row is the row's place among the keys.
void deal(const RowLayout& layout, const std::vector<uint64_t>& keys, RowSums& sums,
          std::vector<RowGradients>& owners) {
  size_t begin = 0;
  for (size_t owner = 0; owner < owners.size(); ++owner) {
    std::vector<int64_t>& heads = owners[owner].heads;
    const size_t count_at = heads.size();
    heads.push_back(0);
    size_t end = begin;
    for (; end < sums.sums.size(); ++end) {
      const RowSum& sum = sums.sums[end];
      const RowLayout::Place place = layout.place_of_key(keys[static_cast<size_t>(sum.row)]);
      if (place.owner != static_cast<int>(owner)) break;
      heads.push_back(place.row);
      heads.push_back(code_of(sum.place));
      if (layout.grows()) heads.push_back(sum.lookups);
    }
    heads[count_at] = static_cast<int64_t>(end - begin);
    const auto dim = static_cast<size_t>(sums.dim);
    owners[owner].values.push_back(std::span(sums.values).subspan(begin * dim, (end - begin) * dim));
    begin = end;
  }
}

float* floats_in(const torch::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

}  // namespace

std::vector<NamedTable> tables_in(const torch::nn::Module& module) {
  std::vector<NamedTable> tables;
  std::set<const Table*> seen;
  const auto look_at = [&](const std::string& name, const torch::nn::Module& each) {
    const auto* has_table = dynamic_cast<const HasTable*>(&each);
    if (has_table != nullptr && seen.insert(has_table->table().get()).second)
      tables.push_back({name, has_table->table(), has_table->table_weight()});
  };
  look_at("embedding", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    look_at(item.key(), *item.value());
  return tables;
}

Tables::Tables(const torch::nn::Module& module) {
  for (const auto& [name, table, weight] : tables_in(module)) {
    table->set_name(name);
    if (weight.defined()) continue;
    tables_.push_back(table);
  }
}

std::vector<std::string> Tables::plan() const {
  std::vector<std::string> lines;
  for (const auto& table : tables_) {
    Json facts = to_json(table->spec(torch::optim::SGDOptions(0)));
    const auto& options = table->options();
    facts["optimizer"] = options.optimizer ? to_json(*options.optimizer) : Json("of the model");
    lines.push_back(fmt::format("table {}: {}, columns {}, bad ids {}", table->name(), facts.dump(),
                                fmt::join(options.columns, " "), static_cast<int>(options.bad_ids)));
  }
  return lines;
}

std::vector<TableSpec> Tables::specs(const OptimizerOptions& optimizer) const {
  std::vector<TableSpec> specs;
  for (const auto& table : tables_) {
    specs.push_back(table->spec(optimizer));
    specs.back().average = average_;
  }
  return specs;
}

void Tables::look_up_values(RowValues values) {
  values_ = values;
  for (const auto& table : tables_) table->look_up_values(values);
}

void Tables::connect(RowOwners& owners) {
  owners_ = &owners;
  ahead_.clear();
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = *tables_[t];
    table.spread(owners.count());
    if (owners.answer_one())
      table.read_with([this, t](std::span<const uint64_t> keys) { return read_now(t, keys); });
    ahead_.emplace_back(table.name(), table.dim());
  }
}

bool Tables::are_direct() const {
  return std::all_of(tables_.begin(), tables_.end(), [](const auto& table) { return table->is_direct(); });
}

void Tables::fetch(std::span<const Batch> batches) {
  std::vector<Lookups*> lookups;
  for (const auto& table : tables_) {
    lookups.push_back(&table->lookups());
    lookups.back()->begin_step();
    for (const Batch& batch : batches) lookups.back()->add_lane(table->columns_in(batch));
    if (are_direct()) lookups.back()->read_from(table->direct());
  }
  if (are_direct()) return;
  const Wanted wanted = wanted_rows(lookups);
  take_rows(wanted, owners_->read(wanted.request));
}

void Tables::look_ahead(std::span<const Batch> batches) {
  std::vector<Lookups*> lookups;
  for (size_t t = 0; t < tables_.size(); ++t) {
    lookups.push_back(&ahead_[t]);
    ahead_[t].begin_step();
    for (const Batch& batch : batches) ahead_[t].add_lane(tables_[t]->columns_in(batch));
  }
  wanted_ahead_ = wanted_rows(lookups);
  owners_->announce(wanted_ahead_.request);
}

void Tables::fetch_ahead() {
  for (size_t t = 0; t < tables_.size(); ++t) std::swap(tables_[t]->lookups(), ahead_[t]);
  take_rows(wanted_ahead_, owners_->read_announced());
}

void Tables::forget_ahead() {
  if (owners_ != nullptr) owners_->withdraw();
  for (Lookups& lookups : ahead_) lookups.begin_step();
}

Tables::Wanted Tables::wanted_rows(std::vector<Lookups*> lookups) const {
  const auto owners = static_cast<size_t>(owners_->count());
  Wanted wanted{{std::vector<std::vector<int64_t>>(owners), std::vector<int64_t>(owners, 0), values_}, {}};
  for (size_t t = 0; t < tables_.size(); ++t) {
    const RowLayout& layout = tables_[t]->layout();
    const std::vector<uint64_t>& keys = lookups[t]->index(layout.key_bits()).keys;
    wanted.begin.push_back(begins_of(layout, keys));
    for (size_t owner = 0; owner < owners; ++owner) {
      const auto begin = static_cast<size_t>(wanted.begin[t][owner]);
      const auto count = static_cast<size_t>(wanted.begin[t][owner + 1]) - begin;
      append_rows(layout, std::span(keys).subspan(begin, count), wanted.request.asked[owner]);
      wanted.request.numbers[owner] += static_cast<int64_t>(count) * tables_[t]->dim();
    }
  }
  return wanted;
}

// Puts the rows of all owners together, in the order of the index.
void Tables::take_rows(const Wanted& wanted, const std::vector<torch::Tensor>& rows) {
  std::vector<const float*> next;
  for (const torch::Tensor& of_owner : rows) next.push_back(floats_in(of_owner));
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int64_t dim = tables_[t]->dim();
    const std::vector<int64_t>& begin = wanted.begin[t];
    const torch::Tensor fetched = torch::empty({begin.back(), dim}, torch::kFloat32);
    for (size_t owner = 0; owner < rows.size(); ++owner) {
      const int64_t numbers = (begin[owner + 1] - begin[owner]) * dim;
      std::copy_n(next[owner], numbers, floats_in(fetched) + begin[owner] * dim);
      next[owner] += numbers;
    }
    tables_[t]->lookups().read_from(fetched);
  }
}

// Reads rows of one table outside of steps.
torch::Tensor Tables::read_now(size_t table, std::span<const uint64_t> keys) const {
  std::vector<Lookups> lookups;
  std::vector<Lookups*> pointers;
  for (const auto& each : tables_) lookups.emplace_back(each->name(), each->dim());
  for (Lookups& each : lookups) pointers.push_back(&each);
  lookups[table].add_lane({{torch::Tensor(), std::vector<uint64_t>(keys.begin(), keys.end())}});
  const Wanted wanted = wanted_rows(pointers);
  const torch::Tensor rows = torch::cat(owners_->read(wanted.request));
  lookups[table].read_from(rows.view({-1, tables_[table]->dim()}));
  return lookups[table].all_rows();
}

void Tables::begin_lane(size_t lane) {
  for (const auto& table : tables_) table->lookups().begin_lane(lane);
}

void Tables::end_lane() {
  for (const auto& table : tables_) table->lookups().end_lane();
}

std::string Tables::hashes_of_lane(size_t lane) const {
  std::string hashes;
  for (const auto& table : tables_) hashes += table->lookups().hash_of_lane(lane);
  return hashes;
}

TableGradients Tables::gradients(const LaneRange& range, int64_t lanes) {
  TableGradients gradients{.sums = {},
                           .of_owners = std::vector<RowGradients>(static_cast<size_t>(owners_->count()))};
  for (const auto& table : tables_) {
    const int bits = table->layout().key_bits();
    gradients.sums.push_back(table->lookups().sums(bits, range, lanes));
    deal(table->layout(), table->lookups().index(bits).keys, gradients.sums.back(), gradients.of_owners);
  }
  return gradients;
}

void TableGradients::divide(double divisor) {
  const auto by = static_cast<float>(divisor);
  for (RowSums& of_table : sums) {
    for (float& value : of_table.values) value /= by;
  }
}

void TableGradients::multiply(double factor) {
  const auto by = static_cast<float>(factor);
  for (RowSums& of_table : sums) {
    for (float& value : of_table.values) value *= by;
  }
}

bool TableGradients::are_finite() const {
  return std::all_of(sums.begin(), sums.end(), [](const RowSums& of_table) {
    return std::all_of(of_table.values.begin(), of_table.values.end(),
                       [](float value) { return std::isfinite(value); });
  });
}

double TableGradients::squares() const {
  double squares = 0;
  for (const RowSums& of_table : sums) {
    for (const float value : of_table.values)
      squares += static_cast<double>(value) * static_cast<double>(value);
  }
  return squares;
}

}  // namespace tutti::embedding
