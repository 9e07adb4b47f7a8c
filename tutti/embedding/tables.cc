#include "tutti/embedding/tables.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/embedding/exchange.h"
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

float* floats_in(const torch::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

// The node of a tree as one number.
constexpr int kLevelBits = 6;
int64_t code_of(const comm::TreeNode& node) { return (node.index << kLevelBits) | node.level; }
comm::TreeNode node_of(int64_t code) {
  return {static_cast<int>(code & ((int64_t{1} << kLevelBits) - 1)), code >> kLevelBits};
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
  if (shared_ != nullptr && !empty()) shared_->sync({.what = kRows});
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

// Every worker asks the owners for its rows: for each table, how many, and which.
void Tables::exchange_rows() {
  const auto world = static_cast<size_t>(comm_->world());
  Lists<int64_t> asked(world);
  std::vector<int64_t> wanted(world, 0);    // numbers
  std::vector<std::vector<OwnedRun>> runs;  // [table][owner]
  for (const auto& [name, table] : tables_) {
    const RowIndex& index = table->lookups().index();
    runs.push_back(runs_of(*table, index));
    for (size_t owner = 0; owner < world; ++owner) {
      const std::vector<int64_t> rows = rows_in(*table, index, runs.back()[owner]);
      asked[owner].push_back(static_cast<int64_t>(rows.size()));
      asked[owner].insert(asked[owner].end(), rows.begin(), rows.end());
      wanted[owner] += static_cast<int64_t>(rows.size()) * table->dim();
    }
  }
  const Lists<int64_t> asked_here = exchange(*comm_, asked, {.what = "the ids of rows"});
  Lists<float> answers(world);
  for (size_t worker = 0; worker < world; ++worker) answers[worker] = own_rows(asked_here[worker]);
  const Lists<float> rows = exchange(*comm_, answers, wanted, {.what = kRows});
  for (size_t owner = 0; owner < world; ++owner) {
    const float* from = rows[owner].data();
    for (size_t t = 0; t < tables_.size(); ++t) {
      const OwnedRun& run = runs[t][owner];
      const int64_t dim = tables_[t].table->dim();
      std::copy_n(from, (run.end - run.begin) * dim,
                  floats_in(tables_[t].table->lookups().rows()) + run.begin * dim);
      from += (run.end - run.begin) * dim;
    }
  }
}

// Returns the rows of this worker that another one has asked for.
std::vector<float> Tables::own_rows(std::span<const int64_t> asked) const {
  std::vector<float> rows;
  for (const auto& [name, table] : tables_) {
    TUTTI_CHECK(!asked.empty(), "rows of '{}'", name);
    const auto count = static_cast<size_t>(asked.front());
    TUTTI_CHECK(count < asked.size(), "{} rows of '{}'", count, name);
    const auto of_table = asked.subspan(1, count);
    for (const int64_t row : of_table)
      TUTTI_CHECK(row >= 0 && row < table->values().size(0), "row {} of '{}'", row, name);
    rows.resize(rows.size() + count * static_cast<size_t>(table->dim()));
    table->read(comm_->rank(), of_table,
                rows.data() + rows.size() - count * static_cast<size_t>(table->dim()));
    asked = asked.subspan(1 + count);
  }
  return rows;
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

// Sends every owner the sums of its rows, and adds up what the workers have sent. For each table a list has
// the number of sums, and of each sum the row and the node of the tree.
std::vector<RowSums> Tables::exchange_sums(const std::vector<RowSums>& own, int64_t step) {
  const auto world = static_cast<size_t>(comm_->world());
  Lists<int64_t> heads(world);
  Lists<float> values(world);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = *tables_[t].table;
    const RowIndex& index = tables_[t].table->lookups().index();
    std::vector<size_t> count_at(world);
    for (size_t owner = 0; owner < world; ++owner) {
      count_at[owner] = heads[owner].size();
      heads[owner].push_back(0);
    }
    for (size_t i = 0; i < own[t].sums.size(); ++i) {
      const RowSum& sum = own[t].sums[i];
      const RowLayout::Place place = table.place_of_key(index.keys[static_cast<size_t>(sum.row)]);
      const auto owner = static_cast<size_t>(place.owner);
      ++heads[owner][count_at[owner]];
      heads[owner].push_back(place.row);
      heads[owner].push_back(code_of(sum.node));
      const auto from = own[t].values.begin() + static_cast<int64_t>(i) * table.dim();
      values[owner].insert(values[owner].end(), from, from + table.dim());
    }
  }
  const Lists<int64_t> their_heads = exchange(*comm_, heads, {.what = "the rows of gradients", .step = step});
  std::vector<std::vector<RowSums>> parts(tables_.size());  // [table][worker]
  std::vector<int64_t> lengths;
  for (const std::vector<int64_t>& of_worker : their_heads) {
    auto head = of_worker.begin();
    lengths.push_back(0);
    for (size_t t = 0; t < tables_.size(); ++t) {
      RowSums& part = parts[t].emplace_back(RowSums{.dim = tables_[t].table->dim()});
      const int64_t count = *head++;
      for (int64_t i = 0; i < count; ++i, head += 2) part.sums.push_back({head[0], node_of(head[1])});
      lengths.back() += count * part.dim;
    }
  }
  const Lists<float> their_values =
      exchange(*comm_, values, lengths, {.what = "the gradients of rows", .step = step});
  std::vector<const float*> next;
  for (const auto& list : their_values) next.push_back(list.data());
  std::vector<RowSums> result;
  for (size_t t = 0; t < tables_.size(); ++t) {
    for (size_t worker = 0; worker < world; ++worker) {
      RowSums& part = parts[t][worker];
      const int64_t floats = static_cast<int64_t>(part.sums.size()) * part.dim;
      part.values.assign(next[worker], next[worker] + floats);
      next[worker] += floats;
    }
    result.push_back(sum_workers(parts[t], tables_[t].table->dim(), lanes_));
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
  if (shared_ != nullptr) shared_->sync({.what = kRows, .step = step});
}

}  // namespace tutti::embedding
