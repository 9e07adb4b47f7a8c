#include "tutti/embedding/row_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/params/parameters.h"

namespace tutti::embedding {
namespace {

constexpr const char* kWeight = ".weight";
constexpr const char* kAverage = "average";  // among the facts of a table

// The tensors of a state besides its fields.
template <class State, class Visit>
void for_each_list(State& state, const Visit& visit) {
  visit(".ids", state.ids);
  visit(".history", state.history);
  visit(".waiting_ids", state.waiting_ids);
  visit(".waiting_history", state.waiting_history);
  visit(".dropped_ids", state.dropped_ids);
  visit(".average", state.average);
  visit(".average_after", state.average_after);
}

Json fact_of_average(const Json& facts, const std::string& table) {
  return facts.value(table, Json::object()).value(kAverage, Json::object());
}

void leave_out(RowShard::State& state, RowParts wanted) {
  if (wanted == RowParts::Weights) state.average = state.average_after = torch::Tensor();
  if (wanted == RowParts::All) return;
  std::erase_if(state.fields, [](const store::NamedTensor& field) { return !field.name.empty(); });
}

[[noreturn]] void fail_not_rows(const std::string& name) {
  fail(ErrorKind::DataLoss,
       "the checkpoint has rows that are called '{}', expected the name of a table and then, for example, "
       "'.weight[1of4]'",
       name);
}

// "user.weight[2of4]".
struct PartName {
  std::string name;
  int owner = 0;
  int owners = 1;
};

PartName parse_part_name(const std::string& text) {
  const size_t open = text.rfind('[');
  const size_t of = text.rfind("of");
  if (open == std::string::npos || of == std::string::npos || of < open || !text.ends_with(']'))
    fail_not_rows(text);
  constexpr int64_t kMostOwners = 1 << 20;
  const auto owner = parse_int(std::string_view(text).substr(open + 1, of - open - 1));
  const auto owners = parse_int(std::string_view(text).substr(of + 2, text.size() - of - 3));
  if (!owner || !owners || *owner < 1 || *owner > *owners || *owners > kMostOwners) fail_not_rows(text);
  return {text.substr(0, open), static_cast<int>(*owner) - 1, static_cast<int>(*owners)};
}

std::string table_in(const std::string& name, const Json& facts) {
  std::string found;
  for (const auto& [table, fact] : facts.items()) {
    if (name.starts_with(table + ".") && table.size() >= found.size()) found = table;
  }
  if (found.empty()) fail_not_rows(name);
  return found;
}

// Returns the ids of all rows of an owner, in the order of their places.
torch::Tensor all_ids(const RowLayout& layout, int owner) {
  torch::Tensor ids = torch::empty({layout.count(owner)}, torch::kLong);
  auto* id = static_cast<int64_t*>(ids.data_ptr());
  for (int64_t row = 0; row < ids.numel(); ++row) id[row] = layout.id_at({owner, row});
  return ids;
}

torch::Tensor chunk_of(const torch::Tensor& tensor, int64_t begin, int64_t end) {
  if (!tensor.defined() || begin >= tensor.size(0)) return {};
  return tensor.narrow(0, begin, std::min(end, tensor.size(0)) - begin);
}

}  // namespace

store::NamedTensors tensors_of(const std::string& table, const RowShard::State& state) {
  store::NamedTensors tensors;
  for_each_list(state, [&](const char* suffix, const torch::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back({table + suffix, tensor});
  });
  for (const auto& [name, tensor] : state.fields)
    tensors.push_back({table + kWeight + (name.empty() ? "" : "/" + name), tensor});
  return tensors;
}

RowShard::State state_of(const std::string& table, const store::NamedTensors& tensors) {
  RowShard::State state;
  for (const auto& [name, tensor] : tensors) {
    bool is_list = false;
    for_each_list(state, [&, &full = name, &value = tensor](const char* suffix, torch::Tensor& list) {
      if (full != table + suffix) return;
      list = value;
      is_list = true;
    });
    if (is_list) continue;
    const std::string weight = table + kWeight;
    if (name == weight)
      state.fields.insert(state.fields.begin(), {"", tensor});
    else if (name.starts_with(weight + "/"))
      state.fields.push_back({name.substr(weight.size() + 1), tensor});
    else
      fail_not_rows(name);
  }
  return state;
}

std::vector<RowShard::State> split(const RowShard::State& state, const RowLayout& layout,
                                   const std::vector<std::vector<int>>& receivers) {
  std::vector<RowShard::State> parts(static_cast<size_t>(layout.owners()));
  // Takes the elements of a list of ids, and of the tensors that belong to it, for each part.
  const auto deal = [&](const torch::Tensor& ids, const auto& fill) {
    if (!ids.defined()) return;
    std::vector<std::vector<int64_t>> of_parts(parts.size());
    const auto* id = static_cast<const int64_t*>(ids.data_ptr());
    for (int64_t i = 0; i < ids.numel(); ++i) {
      if (id[i] < 0 || (layout.rows() > 0 && id[i] >= layout.rows()))
        fail(ErrorKind::InvalidArgument, "the checkpoint has the id {} of a table with {} rows", id[i],
             layout.rows());
      const auto owner = static_cast<size_t>(layout.place_of(id[i]).owner);
      if (receivers.empty()) of_parts[owner].push_back(i);
      for (const int receiver : receivers.empty() ? std::vector<int>() : receivers[owner])
        of_parts[static_cast<size_t>(receiver)].push_back(i);
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      const torch::Tensor index = torch::tensor(of_parts[part], torch::kLong);
      fill(parts[part], [&](const torch::Tensor& of) {
        return of.defined() ? of.index_select(0, index) : torch::Tensor();
      });
    }
  };
  deal(state.ids, [&](RowShard::State& to, const auto& own) {
    to.ids = own(state.ids);
    to.history = own(state.history);
    to.average = own(state.average);
    to.average_after = own(state.average_after);
    for (const auto& [name, tensor] : state.fields) to.fields.push_back({name, own(tensor)});
  });
  deal(state.waiting_ids, [&](RowShard::State& to, const auto& own) {
    to.waiting_ids = own(state.waiting_ids);
    to.waiting_history = own(state.waiting_history);
  });
  deal(state.dropped_ids,
       [&](RowShard::State& to, const auto& own) { to.dropped_ids = own(state.dropped_ids); });
  return parts;
}

namespace {

template <class StateOf>
store::NamedTensors saved(const OwnedRows& rows, const StateOf& state_of) {
  store::NamedTensors all;
  for (const RowShard& shard : rows.shards()) {
    for (auto& [name, tensor] : tensors_of(shard.spec().name, state_of(shard)))
      all.push_back({fmt::format("{}[{}of{}]", name, shard.owner() + 1, shard.layout().owners()), tensor});
  }
  return all;
}

}  // namespace

store::NamedTensors saved_rows(const OwnedRows& rows, RowShard::Which which) {
  return saved(rows, [&](const RowShard& shard) { return shard.state(which); });
}

store::NamedTensors saved_weights(const OwnedRows& rows, RowValues values) {
  return saved(rows, [&](const RowShard& shard) { return shard.weights(values); });
}

Json saved_facts(const std::vector<TableSpec>& tables, const std::map<std::string, GrowthCounts>& counts,
                 int64_t averaged_steps) {
  Json facts = Json::object();
  for (const TableSpec& table : tables) {
    facts[table.name] = {
        {"rows", table.rows}, {"dim", table.dim}, {"placement", std::string(name_of(table.placement))}};
    if (const auto found = counts.find(table.name); found != counts.end())
      facts[table.name]["counts"] = to_json(found->second);
    if (averaged_steps > 0)
      facts[table.name][kAverage] = {{"decay", table.average}, {"steps", averaged_steps}};
  }
  return facts;
}

void for_each_chunk(const std::string& table, const RowShard::State& state, const VisitRows& visit_rows) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  int64_t width = 3 * static_cast<int64_t>(sizeof(int64_t));
  for (const auto& [name, tensor] : state.fields)
    width += static_cast<int64_t>(tensor.nbytes()) / std::max<int64_t>(1, tensor.size(0));
  if (state.average.defined())
    width += static_cast<int64_t>(state.average.nbytes()) / std::max<int64_t>(1, state.average.size(0));
  const int64_t at_a_time = std::max<int64_t>(1, kBytes / width);
  int64_t longest = 0;
  for_each_list(state, [&](const char*, const torch::Tensor& list) {
    if (list.defined()) longest = std::max(longest, list.size(0));
  });
  for (int64_t begin = 0; begin < longest; begin += at_a_time) {
    RowChunk chunk{.table = table, .rows = state};
    for_each_list(chunk.rows,
                  [&](const char*, torch::Tensor& list) { list = chunk_of(list, begin, begin + at_a_time); });
    std::erase_if(chunk.rows.fields, [&](store::NamedTensor& field) {
      field.tensor = chunk_of(field.tensor, begin, begin + at_a_time);
      return !field.tensor.defined();
    });
    visit_rows(chunk);
  }
}

RowChunk rows_alone(const RowShard& shard) {
  RowShard::State state = shard.weights(RowValues::Last);
  if (!state.ids.defined()) state.ids = all_ids(shard.layout(), shard.owner());
  return {shard.spec().name, std::move(state)};
}

int64_t ids_in(const RowShard::State& state) {
  const auto count = [](const torch::Tensor& ids) { return ids.defined() ? ids.numel() : 0; };
  return count(state.ids) + count(state.waiting_ids);
}

RowShard::State state_with_ids(const RowShard& shard) {
  RowShard::State state = shard.state(RowShard::Which::All);
  if (!state.ids.defined()) state.ids = all_ids(shard.layout(), shard.owner());
  return state;
}

SavedRows::SavedRows(const store::Snapshot& saved) : facts_(saved.values) {
  std::map<std::pair<std::string, std::pair<int, int>>, store::NamedTensors> of_owners;
  for (const auto& [name, tensor] : saved.tensors) {
    const PartName part = parse_part_name(name);
    of_owners[{table_in(part.name, facts_), {part.owners, part.owner}}].push_back({part.name, tensor});
  }
  for (const auto& [key, own] : of_owners) {
    const auto& [table, place] = key;
    const std::string what = "the table '" + table + "' in the checkpoint";
    const Json& fact = facts_.at(table);
    const auto rows = value_in<int64_t>(fact, "rows", what);
    if (rows < 0) fail(ErrorKind::DataLoss, "{} has {} rows", what, rows);
    RowsOfOwner part{
        .table = table,
        .layout = RowLayout(parse_placement(value_in<std::string>(fact, "placement", what), what), rows,
                            place.first),
        .owner = place.second,
        .rows = state_of(table, own)};
    if (!part.rows.ids.defined()) {
      if (part.layout.grows()) fail(ErrorKind::DataLoss, "{} has no ids", what);
      part.rows.ids = all_ids(part.layout, part.owner);
    }
    for (const auto& [name, tensor] : part.rows.fields) {
      if (tensor.dim() < 1 || tensor.size(0) != part.rows.ids.numel())
        fail(ErrorKind::DataLoss, "'{}' of {} has the shape {} for {} rows", name.empty() ? "weight" : name,
             what, describe(tensor), part.rows.ids.numel());
    }
    const torch::Tensor& average = part.rows.average;
    const torch::Tensor& after = part.rows.average_after;
    const int64_t count = part.rows.ids.numel();
    if (average.defined() && (average.dim() != 2 || average.size(0) != count || !after.defined() ||
                              after.dim() != 1 || after.size(0) != count))
      fail(ErrorKind::DataLoss, "the moving average of {} has the shape {} for {} rows", what,
           describe(average), count);
    rows_of_owners_.push_back(std::move(part));
  }
}

void SavedRows::for_each(RowParts parts, const VisitRows& visit_rows) const {
  for (const RowsOfOwner& part : rows_of_owners_) {
    RowShard::State rows = part.rows;
    leave_out(rows, parts);
    for_each_chunk(part.table, rows, visit_rows);
  }
}

GrowthCounts SavedRows::counts_of(const std::string& table) const {
  const auto fact = facts_.find(table);
  if (fact == facts_.end() || !fact->contains("counts")) return {};
  return counts_of_json(fact->at("counts"));
}

int64_t SavedRows::averaged_steps() const {
  for (const auto& [table, fact] : facts_.items()) {
    if (fact.contains(kAverage))
      return value_in<int64_t>(fact_of_average(facts_, table), "steps",
                               "the moving average of '" + table + "'");
  }
  return 0;
}

store::NamedTensors joined_rows(const SavedRows& rows, const SavedRows* changes, RowValues values) {
  store::NamedTensors joined;
  const SavedRows& newest = changes != nullptr ? *changes : rows;
  for (const auto& [table, fact] : rows.facts().items()) {
    const std::string what = "the table '" + table + "' in the checkpoint";
    // The rows alone, in the order of their ids.
    TableSpec spec{.name = table,
                   .rows = value_in<int64_t>(fact, "rows", what),
                   .dim = value_in<int64_t>(fact, "dim", what),
                   .placement = Placement::Block,
                   .optimizer = torch::optim::SGDOptions(0)};
    if (values == RowValues::Average && newest.averaged_steps() > 0)
      spec.average = value_in<double>(fact_of_average(newest.facts(), table), "decay", what);
    RowShard all(spec, 0, 1, 0);
    const auto visit_rows = [&, &name = table](const RowChunk& chunk) {
      if (chunk.table == name) all.put(chunk.rows, false);
    };
    rows.for_each(RowParts::WithAverage, visit_rows);
    if (changes != nullptr) changes->for_each(RowParts::WithAverage, visit_rows);
    all.put_averaged_steps(newest.averaged_steps());
    const RowShard::State state = all.weights(values);
    joined.push_back({table + kWeight, state.fields.front().tensor});
    if (state.ids.defined()) joined.push_back({table + ".ids", state.ids});
  }
  return joined;
}

void put_joined(RowShard& alone, const torch::Tensor& weight, const torch::Tensor& ids) {
  RowShard::State state;
  state.ids = alone.layout().grows() ? ids : torch::arange(alone.spec().rows, torch::kLong);
  if (!state.ids.defined())
    fail(ErrorKind::InvalidArgument, "the ids of the rows of '{}', which grows, are missing",
         alone.spec().name);
  state.fields = {{"", weight}};
  if (alone.layout().grows()) {
    // Their earlier lookups are unknown.
    state.history = torch::zeros({state.ids.numel(), 2}, torch::kLong);
    state.history.select(1, 0).fill_(1);
  }
  for_each_chunk(alone.spec().name, state, [&](const RowChunk& chunk) { alone.put(chunk.rows, false); });
}

void SavedRows::require_complete(const std::vector<TableSpec>& tables, RowParts parts, bool changes) const {
  for (const TableSpec& table : tables) {
    const std::string what = "the table '" + table.name + "' in the checkpoint";
    if (!facts_.contains(table.name))
      fail(ErrorKind::InvalidArgument, "the checkpoint has no rows of the table '{}'", table.name);
    const auto rows = value_in<int64_t>(facts_.at(table.name), "rows", what);
    const auto dim = value_in<int64_t>(facts_.at(table.name), "dim", what);
    const auto counted = [](int64_t count) {
      return count == 0 ? std::string("any") : std::to_string(count);
    };
    if (rows != table.rows || dim != table.dim)
      fail(ErrorKind::InvalidArgument, "{} has {} rows of {}, but in the model it has {} of {}", what,
           counted(rows), dim, counted(table.rows), table.dim);
    const RowOptimizer optimizer(table.name, table.optimizer, 0, table.dim);
    std::vector<std::string> wanted = {""};
    for (const auto& slot : optimizer.slots()) {
      if (parts == RowParts::All) wanted.push_back(slot.name);
    }
    for (const std::string& field : wanted) {
      int64_t found = 0;
      bool is_there = false;
      for (const RowsOfOwner& part : rows_of_owners_) {
        for (const auto& [name, tensor] : part.rows.fields) {
          if (part.table != table.name || name != field) continue;
          found += tensor.size(0);
          is_there = true;
        }
      }
      const bool all = changes || table.rows == 0 ? is_there : found == table.rows;
      if (!all)
        fail(ErrorKind::InvalidArgument, "the checkpoint has {} of the {} rows of '{}{}'", found,
             counted(table.rows), table.name + kWeight, field.empty() ? "" : "/" + field);
    }
  }
}

}  // namespace tutti::embedding
