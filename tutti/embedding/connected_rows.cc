#include "tutti/embedding/connected_rows.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"

namespace tutti::embedding {
namespace {

constexpr const char* kRows = "the rows of tables";  // for errors

// `holders` is empty if rows may be lost with their owner.
std::unique_ptr<HeldRows> make_rows(const std::vector<TableSpec>& tables, const comm::Communicator& comm,
                                    comm::SharedVectors* shared, int64_t seed, std::vector<int> holders) {
  const int world = comm.world();
  if (shared != nullptr && !holders.empty())
    return std::make_unique<HeldRows>(tables, comm.rank(), world, seed, *shared);
  if (holders.empty()) holders.assign(static_cast<size_t>(world), kNobody);
  RowPlace place;
  if (shared != nullptr)
    place.allocate = [shared](int64_t elements, torch::ScalarType type) {
      return shared->allocate(elements, type);
    };
  return std::make_unique<HeldRows>(tables, comm.rank(), std::move(holders), seed, place);
}

comm::SharedVectors* shared_of(comm::Communicator& comm) {
  return comm.world() > 1 ? comm.shared() : nullptr;
}

// A tensor that shares the memory of a list. What is sent is only read.
torch::Tensor tensor_of(const std::vector<int64_t>& list) {
  return torch::from_blob(const_cast<int64_t*>(list.data()), {static_cast<int64_t>(list.size())},
                          torch::kLong);
}

// Sends list i to worker i, and receives the lists that the workers send to this one. Returns when their
// lengths have been exchanged; with Run::Behind the rest may still be under way.
void exchange(comm::Communicator& comm, ListsUnderWay& lists, const comm::Options& options) {
  std::vector<int64_t> own;
  for (const auto& list : lists.sent) own.push_back(static_cast<int64_t>(list.size()));
  std::vector<int64_t> lengths(own.size());
  comm::Options here = options;
  here.run = comm::Run::Here;
  comm.all_to_all(tensor_of(lengths), tensor_of(own), here).wait();
  lists.received.resize(own.size());
  std::vector<torch::Tensor> from;
  std::vector<torch::Tensor> to;
  for (size_t i = 0; i < own.size(); ++i) {
    lists.received[i].resize(static_cast<size_t>(lengths[i]));
    from.push_back(tensor_of(lists.sent[i]));
    to.push_back(tensor_of(lists.received[i]));
  }
  lists.work = comm.all_to_all_uneven(to, from, options);
}

// Returns how many numbers each worker sends to this one.
std::vector<int64_t> lengths_of(comm::Communicator& comm, const std::vector<torch::Tensor>& vectors,
                                const comm::Options& options) {
  std::vector<int64_t> own;
  for (const torch::Tensor& vector : vectors) own.push_back(vector.numel());
  std::vector<int64_t> lengths(own.size());
  comm.all_to_all(tensor_of(lengths), tensor_of(own), options).wait();
  return lengths;
}

// Sends vector i to worker i, and returns the vectors that the workers have sent to this one, whose lengths
// it knows.
std::vector<torch::Tensor> exchange(comm::Communicator& comm, const std::vector<torch::Tensor>& vectors,
                                    std::span<const int64_t> lengths, const comm::Options& options) {
  std::vector<torch::Tensor> received;
  for (size_t i = 0; i < vectors.size(); ++i)
    received.push_back(torch::empty({lengths[i]}, vectors[i].options()));
  comm.all_to_all_uneven(received, vectors, options).wait();
  return received;
}

}  // namespace

// Tables that were filled before the training have all of their rows on every worker.
ConnectedRows::ConnectedRows(Tables& tables, comm::Communicator& comm, int64_t seed, int64_t lanes,
                             const OptimizerOptions& optimizer, std::vector<int> holders)
    : tables_(tables),
      comm_(comm),
      shared_(shared_of(comm)),
      lanes_(lanes),
      optimizer_(optimizer),
      held_(make_rows(tables.specs(optimizer), comm, shared_, seed, std::move(holders))) {
  for (size_t t = 0; t < tables.tables().size(); ++t) {
    Table& table = *tables.tables()[t];
    if (!table.has_rows_alone()) continue;
    const RowShard::State alone = rows_alone(table.alone()).rows;
    HeldRows::Room room = held_->room();
    held_->add_rows(room, t, ids_in(alone));
    reserve_together(comm, *held_, room);
    for (OwnedRows& rows : held_->all()) rows.shards()[t].put(alone, false);
  }
  tables_.connect(*this);
  for (size_t t = 0; t < tables.tables().size(); ++t) {
    const RowShard& shard = rows().shards()[t];
    if (shard.layout().grows()) continue;
    if (comm.world() == 1) tables.tables()[t]->show({shard.values()});
    if (shared_ == nullptr) continue;
    std::vector<torch::Tensor> all = shared_->everyones(shard.memory());
    const int64_t dim = shard.spec().dim;
    for (int owner = 0; owner < comm.world(); ++owner) {
      torch::Tensor& one = all[static_cast<size_t>(owner)];
      one = one.narrow(0, 0, shard.layout().count(owner) * dim).view({-1, dim});
    }
    tables.tables()[t]->show(std::move(all));
  }
  wait_for_others();
}

// Afterwards each worker sees the rows that the others have written to shared memory.
void ConnectedRows::wait_for_others(int64_t step) {
  if (shared_ != nullptr) shared_->sync({.what = kRows, .step = step});
}

std::vector<torch::Tensor> ConnectedRows::answers(const Lists<int64_t>& asked,
                                                  const std::vector<int64_t>& numbers, RowValues values) {
  std::vector<torch::Tensor> rows;
  for (const std::vector<int64_t>& list : asked) rows.push_back(this->rows().read(list, values));
  if (comm_.world() == 1) return rows;
  return exchange(comm_, rows, numbers, {.what = kRows});
}

std::vector<torch::Tensor> ConnectedRows::read(const Request& request) {
  if (comm_.world() == 1) return answers(request.asked, request.numbers, request.values);
  ListsUnderWay requests{.sent = request.asked};
  exchange(comm_, requests, {.what = "the ids of rows"});
  requests.work.wait();
  return answers(requests.received, request.numbers, request.values);
}

void ConnectedRows::announce(Request request) {
  withdraw();
  announced_numbers_ = std::move(request.numbers);
  requests_ = {.sent = std::move(request.asked)};
  exchange(comm_, requests_, {.run = comm::Run::Behind, .what = "the ids of rows ahead"});
}

std::vector<torch::Tensor> ConnectedRows::read_announced() {
  requests_.work.wait();
  std::vector<torch::Tensor> rows = answers(requests_.received, announced_numbers_, RowValues::Last);
  requests_ = {};
  return rows;
}

void ConnectedRows::withdraw() {
  requests_.work.wait();
  requests_ = {};
}

std::unique_ptr<HeldRows> ConnectedRows::release() noexcept {
  try {
    withdraw();
  } catch (const std::exception&) {
    requests_ = {};  // failed like all that was under way
  }
  held_->release();
  return std::move(held_);
}

void ConnectedRows::receive(int64_t examples, int64_t step) {
  const std::vector<LaneRange> ranges = lanes_of_all(comm_.world(), lanes_);
  const TableGradients gradients = tables_.gradients(ranges[static_cast<size_t>(comm_.rank())], lanes_);
  if (checks_ && !gradients.are_finite())
    fail(ErrorKind::InvalidArgument,
         "the gradient of a row of a sharded embedding is not finite on rank {} at step {}. Try a lower "
         "learning rate, or check the data; --no-nan-guard continues the training anyway",
         comm_.rank(), step);
  const comm::Options options{.what = "the gradients of rows", .step = step};
  std::vector<torch::Tensor> messages;
  for (int rank = 0; comm_.world() > 1 && rank < comm_.world(); ++rank)
    messages.push_back(rank == comm_.rank() ? torch::empty({0}, torch::kLong)
                                            : held_->message_to(rank, gradients));
  if (comm_.world() > 1) messages = exchange(comm_, messages, lengths_of(comm_, messages, options), options);
  const HeldRows::Sums sums = held_->receive(gradients, messages, ranges);
  if (held_->has_memory()) reserve_together(comm_, *held_, held_->room_for(sums));
  held_->add_up(sums, lanes_, examples, step);
  if (held_->survive()) comm_.barrier(options).wait();
}

metrics::ExactSum sum_of_all(comm::Communicator& comm, const metrics::ExactSum& own) {
  if (comm.world() == 1) return own;
  metrics::ExactSum all;
  for (const torch::Tensor& numbers :
       comm::gather_all(comm, torch::tensor(own.numbers(), torch::kDouble), "the norm of gradients"))
    all.add(metrics::ExactSum::from(
        {static_cast<const double*>(numbers.data_ptr()), static_cast<size_t>(numbers.numel())}));
  return all;
}

double ConnectedRows::squares() const { return sum_of_all(comm_, rows().squares()).value(); }

void ConnectedRows::update(double learning_rate, double factor, int64_t step) {
  held_->update(factor, relative_rate(learning_rate, optimizer_), step);
  show(step);
}

store::NamedTensors ConnectedRows::gather(const store::NamedTensors& own) const {
  store::NamedTensors all;
  comm::gather(comm_, {own, {}}, kRows, [&](const store::Snapshot& rows) {
    all.insert(all.end(), rows.tensors.begin(), rows.tensors.end());
  });
  return all;
}

store::Snapshot ConnectedRows::gather_weights() const {
  return {gather(saved_weights(rows(), tables_.values())),
          saved_facts(tables_.specs(optimizer_), counts(), 0)};
}

void ConnectedRows::put(const RowChunk& chunk, bool changed) {
  const auto& shards = rows().shards();
  const auto shard = std::find_if(shards.begin(), shards.end(),
                                  [&](const RowShard& each) { return each.spec().name == chunk.table; });
  if (held_->has_memory() && shard != shards.end()) {
    HeldRows::Room room = held_->room();
    held_->add_rows(room, static_cast<size_t>(shard - shards.begin()), ids_in(chunk.rows));
    reserve_together(comm_, *held_, room);
  }
  for (OwnedRows& rows : held_->all()) rows.shard_of(chunk.table, "the checkpoint").put(chunk.rows, changed);
}

// The chief sends the rows to all in chunks; an empty chunk ends them.
void ConnectedRows::put_all(const store::Snapshot& saved, RowParts parts, bool changes) {
  const auto broadcast = [&](const store::Snapshot& chunk) {
    return comm::broadcast(comm_, chunk, 0, kRows);
  };
  std::optional<SavedRows> rows;
  Json totals;
  if (comm_.rank() == 0) {
    rows.emplace(saved);
    const std::vector<TableSpec> specs = tables_.specs(optimizer_);
    rows->require_complete(specs, parts, changes);
    totals = {{"steps", parts == RowParts::Weights ? 0 : rows->averaged_steps()}};
    for (const TableSpec& spec : specs) totals["counts"].push_back(to_json(rows->counts_of(spec.name)));
  }
  totals = broadcast({{}, totals}).values;
  std::vector<GrowthCounts> counts;
  for (const Json& each : totals.at("counts")) counts.push_back(counts_of_json(each));
  held_->put_totals(totals.at("steps").get<int64_t>(), counts);
  if (comm_.rank() == 0) {
    rows->for_each(parts, [&](const RowChunk& chunk) {
      if (comm_.world() > 1) broadcast({tensors_of(chunk.table, chunk.rows), {{"table", chunk.table}}});
      put(chunk, changes);
    });
    broadcast({});
    return;
  }
  for (store::Snapshot chunk = broadcast({}); !chunk.empty(); chunk = broadcast({})) {
    const auto table = chunk.values.at("table").get<std::string>();
    put({table, state_of(table, chunk.tensors)}, changes);
  }
}

void ConnectedRows::restore(const store::Snapshot& saved, const std::optional<store::Snapshot>& changes,
                            RowParts parts) {
  held_->reset();
  put_all(saved, parts, false);
  for (RowShard& shard : rows().shards()) shard.mark_saved();
  const bool has_changes = comm::gather_all(comm_, int64_t{changes.has_value()}, kRows)[0] != 0;
  if (has_changes) put_all(changes.value_or(store::Snapshot()), parts, true);
  wait_for_others();
}

std::string ConnectedRows::checksum() const {
  const std::vector<uint64_t> own = rows().checksum();
  const std::vector<int64_t> as_signed(own.begin(), own.end());
  Lists<uint64_t> all;
  for (const torch::Tensor& theirs :
       comm::gather_all(comm_, torch::tensor(as_signed, torch::kLong), "a checksum of rows")) {
    const auto* numbers = static_cast<const int64_t*>(theirs.data_ptr());
    all.emplace_back(numbers, numbers + theirs.numel());
  }
  return joined_checksum(all);
}

std::map<std::string, GrowthCounts> ConnectedRows::counts() const {
  std::map<std::string, GrowthCounts> counts = rows().counts();
  for (auto& [table, own] : counts) {
    const std::vector<int64_t> numbers = {own.rows, own.waiting, own.admitted, own.evicted, own.refused};
    own = {};
    for (const torch::Tensor& theirs :
         comm::gather_all(comm_, torch::tensor(numbers, torch::kLong), "the counts of rows")) {
      const auto* n = static_cast<const int64_t*>(theirs.data_ptr());
      own += {n[0], n[1], n[2], n[3], n[4]};
    }
  }
  return counts;
}

}  // namespace tutti::embedding
