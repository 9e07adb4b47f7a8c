#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/embedding/row_state.h"
#include "tutti/ps/service.h"
#include "tutti/ps/wire.h"

// The methods of a parameter server for the rows of sharded tables.
namespace tutti::ps {
namespace {

embedding::RowValues values_in(const rpc::Message& request) {
  return request.head.value("average", false) ? embedding::RowValues::Average : embedding::RowValues::Last;
}

}  // namespace

// The tables of the run that the chief is about to begin.
rpc::Message Service::tables(Lock&, const rpc::Caller&, const rpc::Message& request) {
  const int owners = static_cast<int>(number_within(request.head, "owners", 1, kMostWorkers));
  const int owner = static_cast<int>(number_within(request.head, "owner", 0, owners - 1));
  std::vector<embedding::TableSpec> tables;
  for (const Json& table : request.head.at("tables"))
    tables.push_back(embedding::spec_of_json(table, options_.optimizers));
  rows_to_begin_ =
      std::make_unique<embedding::OwnedRows>(tables, owner, owners, number_in(request.head, "seed"));
  rows_to_begin_->put_averaged_steps(number_within(request.head, "averaged_steps", 0, kMostSteps, 0));
  const Json counts = request.head.value("counts", Json::object());
  for (const auto& [table, before] : counts.items())
    rows_to_begin_->shard_of(table, "the message").put_counts(embedding::counts_of_json(before));
  return {};
}

embedding::OwnedRows& Service::rows_to_begin() {
  if (!rows_to_begin_) fail(ErrorKind::InvalidArgument, "there are no tables to put rows into");
  return *rows_to_begin_;
}

rpc::Message Service::rows(Lock&, const rpc::Caller&, const rpc::Message& request) {
  const std::string table = text_in(request.head, "table");
  Reader reader(request);
  const auto tensors = unpack_named(request.head.at("rows"), reader);
  reader.end();
  embedding::RowShard& shard = rows_to_begin().shard_of(table, "the message");
  shard.put(embedding::state_of(table, tensors), request.head.at("changed").get<bool>());
  return {};
}

rpc::Message Service::rows_saved(Lock&, const rpc::Caller&, const rpc::Message&) {
  for (embedding::RowShard& shard : rows_to_begin().shards()) shard.mark_saved();
  return {};
}

embedding::OwnedRows& Service::rows_of_run() const {
  if (!run_->rows) fail(ErrorKind::InvalidArgument, "the run has no tables");
  return *run_->rows;
}

rpc::Message Service::read_rows(Lock& lock, const rpc::Caller& caller, const rpc::Message& request) {
  require_run(request);
  rank_of(caller);  // throws unless the caller has joined
  constexpr int64_t kMost = int64_t{1} << 40;
  Reader reader(request);
  const torch::Tensor asked =
      reader.take_tensor(number_within(request.head, "asked", 0, kMost), torch::kLong);
  reader.end();
  auto when = embedding::RowShard::When::Now;
  if (request.head.contains("step")) {
    const int64_t step = number_within(request.head, "step", 0, kMostSteps);
    await_step(lock, caller, request, step);
    if (is_past(step) && !run_->previous.empty()) when = embedding::RowShard::When::BeforeLastStep;
  }
  const torch::Tensor rows =
      rows_of_run().read({static_cast<const int64_t*>(asked.data_ptr()), static_cast<size_t>(asked.numel())},
                         values_in(request), when);
  return {Json::object(), {piece_of(rows)}};
}

rpc::Message Service::all_rows(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  store::NamedTensors rows = embedding::saved_weights(rows_of_run(), values_in(request));
  for (store::NamedTensor& named : rows) named.tensor = named.tensor.clone();
  rpc::Message answer;
  answer.head["rows"] = pack_named(rows, answer.pieces);
  return answer;
}

rpc::Message Service::sum_rows(Lock&, const rpc::Caller&, const rpc::Message& request) {
  require_run(request);
  Json counts = Json::object();
  for (const auto& [table, of_table] : rows_of_run().counts()) counts[table] = to_json(of_table);
  return {{{"sums", rows_of_run().checksum()}, {"counts", std::move(counts)}}, {}};
}

// Returns copies of this server's rows for a snapshot, and adds the facts about them to the answer's head.
store::NamedTensors Service::copies_of_rows(const rpc::Message& request, Json& head) {
  if (!run_->rows) return {};
  const bool changed = request.head.value("changed_rows", false);
  double share = 0;
  for (embedding::RowShard& shard : run_->rows->shards()) {
    shard.evict(run_->step);
    share = std::max(share, shard.changed_share());
  }
  using Which = embedding::RowShard::Which;
  store::NamedTensors rows = embedding::saved_rows(*run_->rows, changed ? Which::Changed : Which::All);
  for (store::NamedTensor& named : rows) named.tensor = named.tensor.clone();
  for (embedding::RowShard& shard : run_->rows->shards()) {
    if (!changed) shard.mark_saved();
  }
  head["changed_share"] = share;
  head["averaged_steps"] = run_->rows->averaged_steps();
  for (const auto& [table, counts] : run_->rows->counts()) head["row_counts"][table] = to_json(counts);
  return rows;
}

}  // namespace tutti::ps
