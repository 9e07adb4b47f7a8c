#include "tutti/embedding/tables.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/metrics/running_mean.h"

namespace tutti::embedding {
namespace {

// A run of the rows of an index that have the same owner.
struct OwnedRun {
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the runs of all owners; the keys are sorted by owner.
std::vector<OwnedRun> runs_of(const Table& table, const RowIndex& index) {
  std::vector<OwnedRun> runs(static_cast<size_t>(table.layout().world()));
  int64_t row = 0;
  for (size_t owner = 0; owner < runs.size(); ++owner) {
    runs[owner].begin = row;
    while (row < index.rows() &&
           table.place_of_key(index.keys[static_cast<size_t>(row)]).owner == static_cast<int>(owner))
      ++row;
    runs[owner].end = row;
  }
  return runs;
}

std::vector<int64_t> rows_in(const Table& table, const RowIndex& index, const OwnedRun& run) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(run.end - run.begin));
  for (int64_t i = run.begin; i < run.end; ++i)
    rows.push_back(table.place_of_key(index.keys[static_cast<size_t>(i)]).row);
  return rows;
}

torch::Tensor whole_numbers(int64_t count) { return torch::empty({count}, torch::kLong); }
int64_t* numbers_in(const torch::Tensor& tensor) { return static_cast<int64_t*>(tensor.data_ptr()); }
float* floats_in(const torch::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

// What each worker sends to each other one: for each table a number of rows, whole numbers and floats.
struct Letters {
  explicit Letters(int world, size_t tables)
      : counts(torch::zeros({world, static_cast<int64_t>(tables)}, torch::kLong)) {}

  int64_t count(int worker, size_t table) const {
    return numbers_in(counts)[worker * counts.size(1) + static_cast<int64_t>(table)];
  }

  torch::Tensor counts;  // (workers, tables)
};

// Tells every worker how many rows of each table this one has for it; returns what the others have for this
// one.
Letters exchange_counts(comm::Communicator& comm, const Letters& own, int64_t step) {
  Letters theirs(comm.world(), static_cast<size_t>(own.counts.size(1)));
  comm.all_to_all(theirs.counts, own.counts, {.what = "the numbers of rows", .step = step}).wait();
  return theirs;
}

}  // namespace

Tables::Tables(const torch::nn::Module& module) {
  std::set<const Table*> seen;
  const auto look_at = [&](const std::string& name, const torch::nn::Module& each) {
    const auto* has_table = dynamic_cast<const HasTable*>(&each);
    if (has_table == nullptr) return;
    auto table = has_table->table();
    if (table && seen.insert(table.get()).second) tables_.push_back({name, std::move(table)});
  };
  look_at("embedding", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    look_at(item.key(), *item.value());
}

std::vector<std::string> Tables::plan() const {
  std::vector<std::string> lines;
  for (const auto& [name, table] : tables_) {
    const auto& optimizer = table->options().optimizer;
    lines.push_back(fmt::format("table {}: {}, columns {}, bad ids {}, initial {}, optimiser {}", name,
                                table->facts().dump(), fmt::join(table->options().columns, " "),
                                static_cast<int>(table->options().bad_ids), table->options().initial_scale,
                                optimizer ? to_json(*optimizer).dump() : "of the model"));
  }
  return lines;
}

void Tables::place(comm::Communicator& comm, int64_t seed, int64_t lanes, const OptimizerOptions& optimizer) {
  comm_ = &comm;
  shared_ = comm.world() > 1 ? comm.shared() : nullptr;
  lanes_ = lanes;
  model_rate_ = learning_rate_of(RowOptimizerOptions(optimizer));
  const Table::Allocate allocate = [this](int64_t elements, const torch::TensorOptions& options) {
    return shared_ != nullptr ? shared_->allocate(elements, options.dtype().toScalarType())
                              : torch::empty({elements}, options);
  };
  for (const auto& [name, table] : tables_) {
    const RowLayout layout(table->options().placement, table->rows(), comm.world());
    table->place(name, layout, comm.rank(), seed, optimizer, allocate);
    if (shared_ != nullptr) {
      std::vector<torch::Tensor> all = shared_->everyones(table->memory());
      for (int owner = 0; owner < comm.world(); ++owner) {
        torch::Tensor& one = all[static_cast<size_t>(owner)];
        one = one.narrow(0, 0, layout.count(owner) * table->dim()).view({layout.count(owner), table->dim()});
      }
      table->show_all(std::move(all));
    }
  }
  if (shared_ != nullptr && !empty()) shared_->sync({.what = "the rows of tables"});
}

bool Tables::can_read_alone() const {
  return std::all_of(tables_.begin(), tables_.end(),
                     [](const Named& each) { return each.table->shows_all(); });
}

void Tables::fetch(std::span<const Batch> batches) {
  for (const auto& [name, table] : tables_) {
    Lookups& lookups = table->lookups();
    lookups.begin_step();
    for (const Batch& batch : batches) lookups.add_lane(table->columns_in(batch));
    lookups.index(table->key_bits());
  }
  if (can_read_alone())
    read_rows();
  else
    exchange_rows();
}

void Tables::read_rows() {
  for (const auto& [name, table] : tables_) {
    const RowIndex& index = table->lookups().index();
    const std::vector<OwnedRun> runs = runs_of(*table, index);
    for (size_t owner = 0; owner < runs.size(); ++owner)
      table->read(static_cast<int>(owner), rows_in(*table, index, runs[owner]),
                  floats_in(table->lookups().rows()) + runs[owner].begin * table->dim());
  }
}

// Every worker asks the owners for its rows.
void Tables::exchange_rows() {
  const int world = comm_->world();
  Letters asked(world, tables_.size());
  std::vector<torch::Tensor> ids;
  std::vector<std::vector<OwnedRun>> runs;  // [table][owner]
  for (const auto& [name, table] : tables_) runs.push_back(runs_of(*table, table->lookups().index()));
  for (int owner = 0; owner < world; ++owner) {
    int64_t count = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      const OwnedRun& run = runs[t][static_cast<size_t>(owner)];
      numbers_in(asked.counts)[owner * asked.counts.size(1) + static_cast<int64_t>(t)] = run.end - run.begin;
      count += run.end - run.begin;
    }
    ids.push_back(whole_numbers(count));
    int64_t* to = numbers_in(ids.back());
    for (size_t t = 0; t < tables_.size(); ++t) {
      const Table& table = *tables_[t].table;
      for (const int64_t row :
           rows_in(table, tables_[t].table->lookups().index(), runs[t][static_cast<size_t>(owner)]))
        *to++ = row;
    }
  }
  const Letters theirs = exchange_counts(*comm_, asked, -1);
  std::vector<torch::Tensor> their_ids;
  std::vector<torch::Tensor> their_rows;
  std::vector<torch::Tensor> own_rows;
  for (int worker = 0; worker < world; ++worker) {
    int64_t ids_asked = 0;
    int64_t floats_asked = 0;
    int64_t floats_wanted = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      ids_asked += theirs.count(worker, t);
      floats_asked += theirs.count(worker, t) * tables_[t].table->dim();
      floats_wanted += asked.count(worker, t) * tables_[t].table->dim();
    }
    their_ids.push_back(whole_numbers(ids_asked));
    their_rows.push_back(torch::empty({floats_asked}, torch::kFloat32));
    own_rows.push_back(torch::empty({floats_wanted}, torch::kFloat32));
  }
  comm_->all_to_all_uneven(their_ids, ids, {.what = "the ids of rows"}).wait();
  for (int worker = 0; worker < world; ++worker) {
    const int64_t* from = numbers_in(their_ids[static_cast<size_t>(worker)]);
    float* to = floats_in(their_rows[static_cast<size_t>(worker)]);
    for (size_t t = 0; t < tables_.size(); ++t) {
      const auto count = static_cast<size_t>(theirs.count(worker, t));
      const Table& table = *tables_[t].table;
      for (size_t i = 0; i < count; ++i)
        TUTTI_CHECK(from[i] >= 0 && from[i] < table.values().size(0), "row {} of '{}'", from[i],
                    table.name());
      table.read(comm_->rank(), std::span(from, count), to);
      from += count;
      to += static_cast<int64_t>(count) * table.dim();
    }
  }
  comm_->all_to_all_uneven(own_rows, their_rows, {.what = "the rows of tables"}).wait();
  for (int owner = 0; owner < world; ++owner) {
    const float* from = floats_in(own_rows[static_cast<size_t>(owner)]);
    for (size_t t = 0; t < tables_.size(); ++t) {
      Table& table = *tables_[t].table;
      const OwnedRun& run = runs[t][static_cast<size_t>(owner)];
      const int64_t floats = (run.end - run.begin) * table.dim();
      std::memcpy(floats_in(table.lookups().rows()) + run.begin * table.dim(), from,
                  static_cast<size_t>(floats) * sizeof(float));
      from += floats;
    }
  }
}

void Tables::begin_lane(size_t lane) {
  for (const auto& [name, table] : tables_) table->lookups().begin_lane(lane);
}

void Tables::end_lane() {
  for (const auto& [name, table] : tables_) table->lookups().end_lane();
}

void Tables::forget() {
  for (const auto& [name, table] : tables_) table->lookups().begin_step();
  sums_.clear();
}

void Tables::sum(int64_t examples, int64_t step) {
  const LaneRange block = lanes_of(comm_->rank(), comm_->world(), lanes_);
  std::vector<RowSums> own;
  for (const auto& [name, table] : tables_) own.push_back(table->lookups().sums(block, lanes_));
  if (comm_->world() == 1) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const RowIndex& index = tables_[t].table->lookups().index();
      for (RowSum& sum : own[t].sums)
        sum.row = tables_[t].table->place_of_key(index.keys[static_cast<size_t>(sum.row)]).row;
    }
    sums_ = std::move(own);
  } else {
    sums_ = exchange_sums(own, step);
  }
  if (lanes_ == 1) return;  // the gradients are those of the mean loss
  const auto divisor = static_cast<float>(examples);
  for (RowSums& sums : sums_) {
    for (float& value : sums.values) value /= divisor;
  }
}

// Sends every owner the sums of its rows, and adds up what the workers have sent.
std::vector<RowSums> Tables::exchange_sums(const std::vector<RowSums>& own, int64_t step) {
  constexpr int kLevelBits = 6;
  const int world = comm_->world();
  Letters sent(world, tables_.size());
  // Two whole numbers for each sum: the row, and the node of the tree.
  std::vector<std::vector<int64_t>> heads(static_cast<size_t>(world));
  std::vector<std::vector<float>> values(static_cast<size_t>(world));
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = *tables_[t].table;
    const RowIndex& index = tables_[t].table->lookups().index();
    for (size_t i = 0; i < own[t].sums.size(); ++i) {
      const RowSum& sum = own[t].sums[i];
      const RowLayout::Place place = table.place_of_key(index.keys[static_cast<size_t>(sum.row)]);
      const auto owner = static_cast<size_t>(place.owner);
      ++numbers_in(sent.counts)[place.owner * sent.counts.size(1) + static_cast<int64_t>(t)];
      heads[owner].push_back(place.row);
      heads[owner].push_back((sum.node.index << kLevelBits) | sum.node.level);
      const auto from = own[t].values.begin() + static_cast<int64_t>(i) * table.dim();
      values[owner].insert(values[owner].end(), from, from + table.dim());
    }
  }
  const Letters theirs = exchange_counts(*comm_, sent, step);
  std::vector<torch::Tensor> own_heads;
  std::vector<torch::Tensor> own_values;
  std::vector<torch::Tensor> their_heads;
  std::vector<torch::Tensor> their_values;
  for (size_t worker = 0; worker < static_cast<size_t>(world); ++worker) {
    own_heads.push_back(
        torch::from_blob(heads[worker].data(), {static_cast<int64_t>(heads[worker].size())}, torch::kLong));
    own_values.push_back(torch::from_blob(values[worker].data(),
                                          {static_cast<int64_t>(values[worker].size())}, torch::kFloat32));
    int64_t count = 0;
    int64_t floats = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      count += theirs.count(static_cast<int>(worker), t);
      floats += theirs.count(static_cast<int>(worker), t) * tables_[t].table->dim();
    }
    their_heads.push_back(whole_numbers(2 * count));
    their_values.push_back(torch::empty({floats}, torch::kFloat32));
  }
  comm_->all_to_all_uneven(their_heads, own_heads, {.what = "the rows of gradients", .step = step}).wait();
  comm_->all_to_all_uneven(their_values, own_values, {.what = "the gradients of rows", .step = step}).wait();

  std::vector<const int64_t*> head;
  std::vector<const float*> value;
  for (size_t worker = 0; worker < static_cast<size_t>(world); ++worker) {
    head.push_back(numbers_in(their_heads[worker]));
    value.push_back(floats_in(their_values[worker]));
  }
  std::vector<RowSums> result;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const int64_t dim = tables_[t].table->dim();
    std::vector<RowSums> parts;
    for (size_t worker = 0; worker < static_cast<size_t>(world); ++worker) {
      const int64_t count = theirs.count(static_cast<int>(worker), t);
      RowSums part{.dim = dim};
      for (int64_t i = 0; i < count; ++i, head[worker] += 2) {
        const int64_t node = head[worker][1];
        part.sums.push_back(
            {head[worker][0], {static_cast<int>(node & ((1 << kLevelBits) - 1)), node >> kLevelBits}});
      }
      part.values.assign(value[worker], value[worker] + count * dim);
      value[worker] += count * dim;
      parts.push_back(std::move(part));
    }
    result.push_back(sum_workers(parts, dim, lanes_));
  }
  return result;
}

double Tables::squares() {
  metrics::ExactSum sum;
  for (const RowSums& sums : sums_) {
    const auto dim = static_cast<size_t>(sums.dim);
    for (size_t i = 0; i < sums.sums.size(); ++i) {
      double squares = 0;
      for (size_t k = i * dim; k < (i + 1) * dim; ++k)
        squares += static_cast<double>(sums.values[k]) * static_cast<double>(sums.values[k]);
      sum.add(squares);
    }
  }
  if (comm_->world() == 1) return sum.value();
  metrics::ExactSum all;
  for (const torch::Tensor& numbers :
       comm::gather_all(*comm_, torch::tensor(sum.numbers(), torch::kDouble), "the norm of gradients"))
    all.add(metrics::ExactSum::from(
        {static_cast<const double*>(numbers.data_ptr()), static_cast<size_t>(numbers.numel())}));
  return all.value();
}

void Tables::update(double learning_rate, double factor, int64_t step) {
  const double rate = model_rate_ > 0 ? learning_rate / model_rate_ : 1;
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = *tables_[t].table;
    RowSums& sums = sums_[t];
    std::vector<int64_t> rows;
    rows.reserve(sums.sums.size());
    for (const RowSum& sum : sums.sums) rows.push_back(sum.row);
    if (factor != 1) {
      const auto by = static_cast<float>(factor);
      for (float& value : sums.values) value *= by;
    }
    table.optimizer().step(table.values(), rows, sums.values, table.learning_rate() * rate, step);
  }
  forget();
  // The others may read the rows from now on.
  if (shared_ != nullptr) shared_->sync({.what = "the rows of tables", .step = step});
}

}  // namespace tutti::embedding
