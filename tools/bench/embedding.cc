#include "tools/bench/embedding.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tools/bench/figures.h"
#include "tutti/embedding/connected_rows.h"
#include "tutti/embedding/embedding.h"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Net : torch::nn::Module {
  explicit Net(const EmbeddingWork& work) {
    const nn::EmbeddingOptions options{.replicate_up_to = 0};
    for (int64_t t = 0; t < work.tables; ++t)
      tables.push_back(register_module(fmt::format("id{}", t), nn::Embedding(work.rows, work.dim, options)));
  }
  std::vector<nn::Embedding> tables;
};

Batch ids_of(const EmbeddingWork& work, std::mt19937_64& random) {
  Batch::Tensors columns;
  for (int64_t t = 0; t < work.tables; ++t) {
    const torch::Tensor ids = torch::empty({work.ids / work.tables}, torch::kLong);
    auto* id = static_cast<int64_t*>(ids.data_ptr());
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      id[i] = static_cast<int64_t>(static_cast<double>(work.rows) * u * u * u * u);
    }
    columns.emplace_back(fmt::format("id{}", t), ids);
  }
  return Batch(std::move(columns));
}

double median_milliseconds(const EmbeddingWork& work, comm::Communicator& comm,
                           const std::function<void(int64_t step)>& body) {
  constexpr int64_t kWarmUp = 3;
  std::vector<double> times;
  for (int64_t step = 0; step < kWarmUp + work.steps; ++step) {
    comm.barrier({.what = "the benchmark"}).wait();
    const auto begin = Clock::now();
    body(step);
    if (step >= kWarmUp)
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  return quantile(std::move(times), 0.5);
}

// Numbers the rows of all tables consecutively, as if they were one table.
torch::Tensor joined_ids(const Batch& batch, const EmbeddingWork& work) {
  std::vector<torch::Tensor> ids;
  for (size_t t = 0; t < batch.tensors().size(); ++t)
    ids.push_back(batch.tensors()[t].second + static_cast<int64_t>(t) * work.rows);
  return torch::cat(ids);
}

}  // namespace

Json to_json(const EmbeddingTimes& times) {
  return {{"lookup_ms", times.lookup},
          {"step_ms", times.step},
          {"local_ms", times.local},
          {"touched_rows", times.touched}};
}

EmbeddingTimes measure_embedding(comm::Communicator& comm, const EmbeddingWork& work) {
  constexpr size_t kBatches = 8;
  Net net(work);
  embedding::Tables tables(net);
  embedding::ConnectedRows rows(tables, comm, 1, comm.world(), torch::optim::AdagradOptions(0.01));
  std::mt19937_64 random(static_cast<uint64_t>(comm.rank()) + 1);
  std::vector<Batch> batches;
  for (size_t i = 0; i < kBatches; ++i) batches.push_back(ids_of(work, random));
  const torch::Tensor gradient = torch::rand({work.ids / work.tables, work.dim});
  const auto look_up = [&](int64_t step, bool backward) {
    const Batch& batch = batches[static_cast<size_t>(step) % kBatches];
    tables.fetch({&batch, 1});
    tables.begin_lane(0);
    for (size_t t = 0; t < net.tables.size(); ++t) {
      const torch::Tensor found = net.tables[t](batch.tensors()[t].second);
      if (backward) found.backward(gradient);
    }
    tables.end_lane();
  };
  EmbeddingTimes times;
  times.lookup = median_milliseconds(work, comm, [&](int64_t step) { look_up(step, false); });
  times.step = median_milliseconds(work, comm, [&](int64_t step) {
    look_up(step, true);
    rows.receive(work.ids * comm.world(), step);
    rows.begin_step(step);
    rows.update(0.01, 1, step + 1);
  });
  const torch::Tensor local = torch::rand({work.rows * work.tables, work.dim});
  std::vector<torch::Tensor> ids;
  for (const Batch& batch : batches) ids.push_back(joined_ids(batch, work));
  times.local = median_milliseconds(work, comm, [&](int64_t step) {
    static_cast<void>(local.index_select(0, ids[static_cast<size_t>(step) % kBatches]).clone());
  });
  const auto* id = static_cast<const int64_t*>(ids[0].data_ptr());
  times.touched = static_cast<int64_t>(std::set<int64_t>(id, id + ids[0].numel()).size());
  return times;
}

}  // namespace tutti::bench
