#include "tutti/embedding/connected_rows.h"

#include <algorithm>

#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"

namespace tutti::embedding {
namespace {

constexpr const char* kRows = "the rows of tables";  // for errors

RowShard::Allocate allocator_in(comm::SharedVectors* shared) {
  if (shared == nullptr) return {};
  return [shared](int64_t elements, const torch::TensorOptions& options) {
    return shared->allocate(elements, options.dtype().toScalarType());
  };
}

comm::SharedVectors* shared_of(comm::Communicator& comm) {
  return comm.world() > 1 ? comm.shared() : nullptr;
}

torch::Tensor joined(const std::vector<std::span<const float>>& parts) {
  size_t size = 0;
  for (const auto& part : parts) size += part.size();
  const torch::Tensor all = torch::empty({static_cast<int64_t>(size)}, torch::kFloat32);
  auto* to = static_cast<float*>(all.data_ptr());
  for (const auto& part : parts) to = std::copy(part.begin(), part.end(), to);
  return all;
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
                             const OptimizerOptions& optimizer)
    : tables_(tables),
      comm_(comm),
      shared_(shared_of(comm)),
      lanes_(lanes),
      optimizer_(optimizer),
      rows_(tables.specs(optimizer), comm.rank(), comm.world(), seed, allocator_in(shared_)) {
  for (size_t t = 0; t < tables.tables().size(); ++t) {
    Table& table = *tables.tables()[t];
    if (table.has_rows_alone()) rows_.shards()[t].put(rows_alone(table.alone()).rows, false);
  }
  tables_.connect(*this);
  for (size_t t = 0; t < tables.tables().size(); ++t) {
    const RowShard& shard = rows_.shards()[t];
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
  for (const std::vector<int64_t>& list : asked) rows.push_back(rows_.read(list, values));
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

void ConnectedRows::begin_step(int64_t examples, int64_t step) {
  const std::vector<LaneRange> ranges = lanes_of_all(comm_.world(), lanes_);
  const auto rank = static_cast<size_t>(comm_.rank());
  TableGradients gradients = tables_.gradients(ranges[rank], lanes_);
  if (checks_ && !gradients.are_finite())
    fail(ErrorKind::InvalidArgument,
         "the gradient of a row of a sharded embedding is not finite on rank {} at step {}. Try a lower "
         "learning rate, or check the data; --no-nan-guard continues the training anyway",
         rank, step);
  std::vector<std::vector<RowSumsView>> sums(ranges.size());  // [worker]
  // This worker does not send to itself.
  sums[rank] = rows_.sums_in(std::exchange(gradients.of_owners[rank], {}), ranges[rank]);
  ListsUnderWay heads;
  std::vector<torch::Tensor> received;
  if (comm_.world() > 1) {
    std::vector<torch::Tensor> values;
    for (RowGradients& to : gradients.of_owners) {
      values.push_back(joined(to.values));
      heads.sent.push_back(std::move(to.heads));
    }
    exchange(comm_, heads, {.what = "the rows of gradients", .step = step});
    heads.work.wait();
    std::vector<int64_t> lengths;
    for (const auto& list : heads.received) lengths.push_back(rows_.numbers_of(list));
    received = exchange(comm_, values, lengths, {.what = "the gradients of rows", .step = step});
    for (size_t worker = 0; worker < sums.size(); ++worker) {
      if (worker == rank) continue;
      const std::span<const float> numbers(static_cast<const float*>(received[worker].data_ptr()),
                                           static_cast<size_t>(received[worker].numel()));
      sums[worker] = rows_.sums_in({heads.received[worker], rows_.split(heads.received[worker], numbers)},
                                   ranges[worker]);
    }
  }
  // With one lane the gradients are of the mean loss.
  rows_.begin_step(sums, lanes_, lanes_ == 1 ? 0 : static_cast<double>(examples), step);
}

double ConnectedRows::squares() const {
  const metrics::ExactSum own = rows_.squares();
  if (comm_.world() == 1) return own.value();
  metrics::ExactSum all;
  for (const torch::Tensor& numbers :
       comm::gather_all(comm_, torch::tensor(own.numbers(), torch::kDouble), "the norm of gradients"))
    all.add(metrics::ExactSum::from(
        {static_cast<const double*>(numbers.data_ptr()), static_cast<size_t>(numbers.numel())}));
  return all.value();
}

void ConnectedRows::update(double learning_rate, double factor, int64_t step) {
  rows_.update(factor, relative_rate(learning_rate, optimizer_), step);
  wait_for_others(step);
}

void ConnectedRows::evict(int64_t step) {
  for (RowShard& shard : rows_.shards()) shard.evict(step);
}

store::NamedTensors ConnectedRows::gather(const store::NamedTensors& own) const {
  store::NamedTensors all;
  comm::gather(comm_, {own, {}}, kRows, [&](const store::Snapshot& rows) {
    all.insert(all.end(), rows.tensors.begin(), rows.tensors.end());
  });
  return all;
}

store::Snapshot ConnectedRows::gather_weights() const {
  return {gather(saved_weights(rows_, tables_.values())),
          saved_facts(tables_.specs(optimizer_), counts(), 0)};
}

void ConnectedRows::put(const RowChunk& chunk, bool changed) {
  rows_.shard_of(chunk.table, "the checkpoint").put(chunk.rows, changed);
}

// The chief sends the rows to all in chunks; an empty chunk ends them.
void ConnectedRows::put_all(const store::Snapshot& saved, RowParts parts, bool changes) {
  const auto put_averaged_steps = [&](int64_t steps) {
    rows_.put_averaged_steps(comm::gather_all(comm_, steps, kRows)[0]);
  };
  const auto broadcast = [&](const store::Snapshot& chunk) {
    return comm::broadcast(comm_, chunk, 0, kRows);
  };
  if (comm_.rank() == 0) {
    const SavedRows rows(saved);
    rows.require_complete(tables_.specs(optimizer_), parts, changes);
    put_averaged_steps(parts == RowParts::Weights ? 0 : rows.averaged_steps());
    for (RowShard& shard : rows_.shards()) shard.put_counts(rows.counts_of(shard.spec().name));
    rows.for_each(parts, [&](const RowChunk& chunk) {
      if (comm_.world() > 1) broadcast({tensors_of(chunk.table, chunk.rows), {{"table", chunk.table}}});
      put(chunk, changes);
    });
    broadcast({});
    return;
  }
  put_averaged_steps(0);
  for (store::Snapshot chunk = broadcast({}); !chunk.empty(); chunk = broadcast({})) {
    const auto table = chunk.values.at("table").get<std::string>();
    put({table, state_of(table, chunk.tensors)}, changes);
  }
}

void ConnectedRows::restore(const store::Snapshot& saved, const std::optional<store::Snapshot>& changes,
                            RowParts parts) {
  for (RowShard& shard : rows_.shards()) shard.reset();
  put_all(saved, parts, false);
  for (RowShard& shard : rows_.shards()) shard.mark_saved();
  const bool has_changes = comm::gather_all(comm_, int64_t{changes.has_value()}, kRows)[0] != 0;
  if (has_changes) put_all(changes.value_or(store::Snapshot()), parts, true);
  wait_for_others();
}

std::string ConnectedRows::checksum() const {
  const std::vector<uint64_t> own = rows_.checksum();
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
  std::map<std::string, GrowthCounts> counts = rows_.counts();
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
