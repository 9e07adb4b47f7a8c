#include "tutti/train/strategy.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/json.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/cluster/roles.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/random_scope.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/step/plan.h"
#include "tutti/train/data_parallel.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/strategies/in_graph.h"
#include "tutti/train/strategies/parameter_servers.h"
#include "tutti/train/unused_flags.h"

namespace tutti {
namespace {

std::string generator_name(int rank, size_t generator) { return fmt::format("rank{}.{}", rank, generator); }

}  // namespace

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

Json outcome_of(const Strategy::MakeValue& make) {
  // A text may quote a file name that is not UTF-8, which cannot be sent.
  const auto readable = [](const Json& outcome) {
    return Json::parse(outcome.dump(-1, ' ', false, Json::error_handler_t::replace));
  };
  const auto failure = [&](ErrorKind kind, const std::string& text) {
    return readable({{"kind", static_cast<int>(kind)}, {"error", text}});
  };
  try {
    return readable({{"result", make()}});
  } catch (const Error& error) {
    return failure(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return failure(ErrorKind::Overloaded, "out of memory");
  } catch (const std::exception& error) {
    return failure(ErrorKind::InvalidArgument, first_line(error.what()));
  }
}

Json result_of(const Json& outcome) {
  if (outcome.contains("error"))
    throw Error(static_cast<ErrorKind>(outcome.at("kind").get<int>()),
                outcome.at("error").get<std::string>());
  return outcome.at("result");
}

// The barrier in on_chief() waits longer than the exchange of the result.
Json share(const Context& context, comm::Communicator& comm, const std::string& what,
           const Strategy::MakeValue& make) {
  std::string outcome;
  on_chief(context, comm, {.what = what.c_str()}, [&] { outcome = outcome_of(make).dump(); });
  const auto all = gather_all(comm, outcome, what.c_str());
  return result_of(parse_json(all[0], what, ErrorKind::DataLoss));
}

void finish_saving(const Context& context, comm::Communicator& comm, Session& session) {
  if (!session.folder().empty())
    on_chief(context, comm, {.what = "the checkpoint"}, [&] { session.finish_saving(); });
}

StatePart generators_part(torch::Device device, int rank) {
  const auto snapshot = [device, rank] {
    Snapshot states;
    for (const torch::Tensor& state : generator_states(device))
      states.tensors.push_back({generator_name(rank, states.tensors.size()), state});
    return states;
  };
  // A run with more workers than before starts the additional ones with the generators that they have.
  const auto restore = [device, rank](const Snapshot& snapshot) {
    std::vector<torch::Tensor> states;
    for (const auto& [name, tensor] : snapshot.tensors) {
      if (name == generator_name(rank, states.size())) states.push_back(tensor);
    }
    set_generator_states(device, states);
  };
  return {snapshot, restore};
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

RunFacts facts_of(const Context& context, const ReducerOptions& reducer, double clip_norm, int world,
                  const Parameters& parameters) {
  ReducerOptions how = reducer;
  how.scatter = false;  // the distribution of the optimiser's state does not change the result
  RunFacts facts{
      .settings = {{"clip-norm", clip_norm}, {"reduction", to_string(how)}},
      .conditions = {{"libraries", context.kernels().libraries}, {"results", context.kernels().results}}};
  if (context.kernels().threads > 0) facts.conditions["threads"] = context.kernels().threads;
  facts.settings["layout"] = parameters.layout() == Layout::ChannelsLast ? "channels-last" : "contiguous";
  const auto depends_if = [&](bool holds, std::string what) {
    if (holds) facts.depends_on_workers.push_back(std::move(what));
  };
  depends_if(!parameters.communicator_users().empty(), "SyncBatchNorm");
  depends_if(how.fast, "--reduce fast");
  const bool rounded = how.wire.type != torch::ScalarType::Undefined;
  depends_if(rounded, rounded ? std::string(type_name(how.wire.type)) + " on the wire" : "");
  if (!facts.depends_on_workers.empty()) facts.conditions["workers"] = world;
  return facts;
}

void merge(comm::Communicator& comm, const metrics::List& list) {
  if (comm.world() == 1 || list.empty()) return;
  const auto all = gather_all(comm, torch::tensor(metrics::counters_of(list), torch::kDouble), "metrics");
  for (const auto& metric : list) metric->reset();
  for (const torch::Tensor& theirs : all)
    metrics::merge(list,
                   {static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

void add_rows(store::Report& report, const std::string& checksum,
              const std::map<std::string, embedding::GrowthCounts>& counts) {
  for (const auto& [table, of_table] : counts) report.tables[table] = to_json(of_table);
  Sha256 hash;
  hash.update(as_bytes(report.weights_sha256 + checksum));
  report.weights_sha256 = hash.hex();
}

namespace {

// Makes a strategy whose workers compute their lanes themselves.
std::unique_ptr<DataParallel> make_data_parallel(const Context& context, const Trainable& model,
                                                 const OptimizerOptions& optimizer,
                                                 const ReplicaOptions& replica,
                                                 const StrategyOptions& options) {
  const std::string& asked = context.config().training.strategy;
  const Group group = options.group.value_or(Group::unconnected(context));
  if (!train_through_servers(context) || (asked.empty() && group.communicator))
    return std::make_unique<AllReduce>(context, options.group ? *options.group : connect(context), model,
                                       optimizer, replica, options);
  if (group.communicator || (group.part.empty() && group.world != context.world()))
    fail(ErrorKind::InvalidArgument,
         "the servers have to know which workers are in a group, but the one that was given does not say it: "
         "split tutti::all_workers(context) with a function of the rank, or use --strategy allreduce");
  return std::make_unique<ParameterServers>(context, group, model, optimizer, replica, options);
}

void require_worker(const Context& context, const StrategyOptions& options) {
  if (!context.identity().is_evaluator) context.require_worker();
  require_clip_norm(options.clip_norm);
}

void require_no_synchronised_modules(Strategy& strategy) {
  if (strategy.group().communicator || strategy.replica().parameters().communicator_users().empty()) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm is not supported with parameter servers or passive workers, since the workers are not "
       "connected to each other: use BatchNorm, or --strategy allreduce");
}

}  // namespace

std::unique_ptr<Strategy> make_strategy(const Context& context, const Trainable& model,
                                        const OptimizerOptions& optimizer, const StrategyOptions& options) {
  const std::string& asked = context.config().training.strategy;
  const ReplicaOptions replica = replica_options(context, layout_for(context, *model.module));
  require_worker(context, options);
  std::unique_ptr<Strategy> strategy;
  if (asked != "in-graph" || context.identity().is_evaluator) {
    strategy = make_data_parallel(context, model, optimizer, replica, options);
  } else if (options.group) {
    fail(ErrorKind::InvalidArgument,
         "--strategy in-graph cannot be used for a group of the workers, since the master belongs to all of "
         "them: use --strategy allreduce, or parameter servers");
  } else {
    strategy = std::make_unique<InGraph>(context, model, optimizer, replica, options.clip_norm);
  }
  require_no_synchronised_modules(*strategy);
  const bool has_tables = !strategy->replica().tables().empty();
  if (!context.identity().is_evaluator)
    warn_of_unused_flags(
        context, {.strategy = asked.empty() ? strategy->facts().name : asked, .has_tables = has_tables});
  return strategy;
}

std::unique_ptr<DataParallel> make_strategy(const Context& context,
                                            const std::shared_ptr<torch::nn::Module>& module,
                                            Parameters& parameters, const OptimizerOptions& optimizer,
                                            const StrategyOptions& options) {
  require_worker(context, options);
  ReplicaOptions replica = replica_options(context, parameters.layout());
  replica.device = parameters.device();
  replica.parameters = &parameters;
  auto strategy = make_data_parallel(context, {.module = module, .loss = {}, .predict = {}, .script = {}},
                                     optimizer, replica, options);
  require_no_synchronised_modules(*strategy);
  return strategy;
}

}  // namespace tutti
