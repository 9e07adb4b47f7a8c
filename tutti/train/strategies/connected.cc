#include "tutti/train/strategies/connected.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tutti/base/deadline.h"
#include "tutti/base/json.h"
#include "tutti/comm/gather_all.h"

namespace tutti {

void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body) {
  constexpr int kTimeouts = 10;
  if (comm.rank() == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      comm.abandon(fmt::format("{} gave up: {}", context.task().short_name(), error.what()));
      throw;
    }
  }
  comm::Options waiting = options;
  waiting.timeout = milliseconds_of(context.config().network.timeout * kTimeouts);
  comm.barrier(waiting).wait();
}

// The barrier in on_chief() waits longer than the exchange of the result.
Json share(const Context& context, comm::Communicator& comm, const std::string& what,
           const Strategy::MakeValue& make) {
  std::string outcome;
  on_chief(context, comm, {.what = what.c_str()}, [&] { outcome = outcome_of(make).dump(); });
  const auto all = gather_all(comm, outcome, what.c_str());
  return result_of(parse_json(all[0], what, ErrorKind::DataLoss));
}

Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session) {
  Session::Start start;
  on_chief(context, comm, {.what = "the checkpoint"}, [&] { start = session.start(); });
  if (comm.world() == 1) return start;
  Json told = to_json(start.progress);
  told["lanes"] = session.lanes();
  for (const auto& [name, part] : start.more) told["more"].push_back(name);
  const auto all = gather_all(comm, comm.rank() == 0 ? told.dump() : std::string(), "the progress");
  const Json chiefs = Json::parse(all[0]);
  start.progress = progress_of(chiefs);
  session.follow(chiefs.at("lanes").get<int64_t>());
  for (const Json& name : chiefs.value("more", Json::array())) {
    Snapshot& part = start.more[name.get<std::string>()];
    part = broadcast(comm, part, 0, "the state of the run");
  }
  return start;
}

void merge(comm::Communicator& comm, const metrics::List& list) {
  if (comm.world() == 1 || list.empty()) return;
  const auto all = gather_all(comm, torch::tensor(metrics::counters_of(list), torch::kDouble), "metrics");
  for (const auto& metric : list) metric->reset();
  for (const torch::Tensor& theirs : all)
    metrics::merge(list,
                   {static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

Snapshots gather_generators(comm::Communicator& comm, Snapshots parts) {
  const auto found = parts.find(kGenerators);
  if (comm.world() == 1 || found == parts.end()) return parts;
  store::NamedTensors all;
  gather(comm, found->second, "the random generators", [&](const Snapshot& theirs) {
    all.insert(all.end(), theirs.tensors.begin(), theirs.tensors.end());
  });
  found->second.tensors = std::move(all);
  return parts;
}

}  // namespace tutti
