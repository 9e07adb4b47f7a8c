#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/json.h"
#include "tutti/embedding/owned_rows.h"
#include "tutti/store/named_tensors.h"

// The rows of sharded tables in checkpoints: each owner writes its rows as tensors whose names say which they
// are, such as "user.weight[1of4]", "user.weight/sum[1of4]" for a slot of the optimiser, and
// "user.average[1of4]" for a moving average that was kept (RowAverage). They are found
// again by their ids, whatever the number of owners: "user.ids[1of4]" has these or, if there is no such
// tensor, they are all rows of this owner in the order of their places.
namespace tutti::embedding {

// Convert a state to tensors with the names of a checkpoint, without the owner, and back. Tensors that belong
// to no state are a DataLoss.
store::NamedTensors tensors_of(const std::string& table, const RowShard::State& state);
RowShard::State state_of(const std::string& table, const store::NamedTensors& tensors);

// Returns the rows that each owner of a layout has in a state, which has ids. With `receivers`, the rows of
// an owner are in the parts of these owners instead.
std::vector<RowShard::State> split(const RowShard::State& state, const RowLayout& layout,
                                   const std::vector<std::vector<int>>& receivers = {});
// Returns the number of the ids in a state, with those that wait.
int64_t ids_in(const RowShard::State& state);
// Returns all rows of a shard, with their ids.
RowShard::State state_with_ids(const RowShard& shard);

// Returns the rows of one owner for a checkpoint.
store::NamedTensors saved_rows(const OwnedRows& rows, RowShard::Which which);
// The same with these values, without what optimisers keep and without a moving average besides.
store::NamedTensors saved_weights(const OwnedRows& rows, RowValues values);
// The facts about the tables that a checkpoint has besides: {"user": {"rows": ..., "dim": ..., ...}}.
// `counts` are the counts of all owners together, and `averaged_steps` is 0 if there are no moving averages.
Json saved_facts(const std::vector<TableSpec>& tables, const std::map<std::string, GrowthCounts>& counts,
                 int64_t averaged_steps);

// Rows with their ids, and their table.
struct RowChunk {
  std::string table;
  RowShard::State rows;
};
using VisitRows = std::function<void(const RowChunk&)>;
// Calls `visit_rows` with the rows of a state, which has ids, in chunks of some megabytes.
void for_each_chunk(const std::string& table, const RowShard::State& state, const VisitRows& visit_rows);
// Returns all rows of a table that is not spread, without what an optimiser keeps.
RowChunk rows_alone(const RowShard& shard);

// The parts of rows that are taken: their values, also their moving averages, or also what optimisers keep.
enum class RowParts { Weights, WithAverage, All };

// The rows of a checkpoint, of all owners.
class SavedRows {
 public:
  // Takes the part of a checkpoint that contains tables, whose values are their facts. Throws DataLoss if
  // they do not fit the tensors.
  explicit SavedRows(const store::Snapshot& saved);

  // Calls `visit_rows` with these parts of all rows, in chunks.
  void for_each(RowParts parts, const VisitRows& visit_rows) const;

  // Throws InvalidArgument that says what differs if these are not the rows of such tables: other tables,
  // rows or numbers, fields that are missing, or, unless they are `changes` only, rows that are missing. A
  // moving average may be missing.
  void require_complete(const std::vector<TableSpec>& tables, RowParts parts, bool changes) const;
  const Json& facts() const { return facts_; }
  // Returns the counts of the ids of a table that grows, on all owners.
  GrowthCounts counts_of(const std::string& table) const;
  // The number of steps that the moving averages are over; 0 if there are none.
  int64_t averaged_steps() const;

 private:
  struct RowsOfOwner {
    std::string table;
    RowLayout layout;
    int owner = 0;
    RowShard::State rows;
  };
  std::vector<RowsOfOwner> rows_of_owners_;
  Json facts_;
};

// Returns the rows of a checkpoint as ordinary tensors, for readers that know nothing of owners:
// "user.weight" in the order of the ids, and for tables that grow "user.ids" besides. `changes` are rows that
// have changed since. If there are no moving averages, RowValues::Average are the rows themselves.
store::NamedTensors joined_rows(const SavedRows& rows, const SavedRows* changes,
                                RowValues values = RowValues::Last);
// Puts such tensors into a table that is not part of a training yet: all rows of a table that does not grow,
// or the rows of `ids`, which is undefined otherwise. Throws InvalidArgument if they do not fit.
void put_joined(RowShard& alone, const torch::Tensor& weight, const torch::Tensor& ids);

}  // namespace tutti::embedding
