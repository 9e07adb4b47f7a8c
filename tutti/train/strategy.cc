#include "tutti/train/strategy.h"

#include <algorithm>
#include <new>
#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/file.h"
#include "tutti/base/hashes.h"
#include "tutti/base/text.h"
#include "tutti/base/type_name.h"
#include "tutti/cluster/roles.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/train/data_parallel.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/strategies/in_graph.h"
#include "tutti/train/strategies/parameter_servers.h"
#include "tutti/train/unused_flags.h"

namespace tutti {

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

void add_rows(store::Report& report, const std::string& checksum,
              const std::map<std::string, embedding::GrowthCounts>& counts) {
  for (const auto& [table, of_table] : counts) report.tables[table] = to_json(of_table);
  Sha256 hash;
  hash.update(as_bytes(report.weights_sha256 + checksum));
  report.weights_sha256 = hash.hex();
}

namespace {

// Makes a strategy whose workers compute their lanes themselves. Sets `all_reduce`, unless it is null, to the
// strategy if that is an AllReduce.
std::unique_ptr<DataParallel> make_data_parallel(const Context& context, const Trainable& model,
                                                 const OptimizerOptions& optimizer,
                                                 const ReplicaOptions& replica,
                                                 const StrategyOptions& options,
                                                 AllReduce** all_reduce = nullptr) {
  const std::string& asked = context.config().training.strategy;
  const bool is_connected = options.group && options.group->communicator;
  if (!train_through_servers(context) || (asked.empty() && is_connected)) {
    auto strategy = std::make_unique<AllReduce>(context, options.group ? *options.group : connect(context),
                                                model, optimizer, replica, options);
    if (all_reduce != nullptr) *all_reduce = strategy.get();
    return strategy;
  }
  const Group group = options.group ? *options.group : all_workers(context);
  const bool may_change = group.communicator && group.communicator->epochs() != nullptr;
  const bool is_a_part = group.communicator || (group.part.empty() && group.world != context.world());
  if (is_a_part && !may_change)
    fail(ErrorKind::InvalidArgument,
         "the servers have to know which workers are in a group, but the one that was given does not say it: "
         "split tutti::all_workers(context) with a function of the rank, or use --strategy allreduce");
  return std::make_unique<ParameterServers>(context, group, model, optimizer, replica, options);
}

void require_worker(const Context& context, const StrategyOptions& options) {
  if (!context.identity().is_evaluator) context.require_worker();
  require_clip_norm(options.clip_norm);
}

// Says what the modules cannot do in this way of training.
void check_modules(const Context& context, Strategy& strategy) {
  const Parameters& parameters = strategy.replica().parameters();
  for (const Parameters::SparseTable& table : parameters.sparse_tables()) {
    if (!strategy.group().is_chief()) break;
    context.log().warning(
        "the embedding {} was made with sparse(true), which Tutti does not support yet: each step processes "
        "all of its {} rows, not only the rows of the batch. This means {} of gradients, as much of weights, "
        "and as much again for each state of the optimiser",
        table.name, table.rows, human_bytes(table.bytes));
  }
  const bool are_connected = strategy.group().communicator && !strategy.facts().keeps_parameters_elsewhere;
  if (are_connected || parameters.communicator_users().empty()) return;
  fail(ErrorKind::InvalidArgument,
       "SyncBatchNorm is not supported with parameter servers or passive workers, since the workers are not "
       "connected to each other: use BatchNorm, or --strategy allreduce");
}

}  // namespace

std::optional<Strategy::Standing> Strategy::go_on(Session& /*session*/,
                                                  const std::vector<std::string>& /*plan*/,
                                                  const Standing* /*mine*/) {
  fail(ErrorKind::InvalidArgument, "--strategy {}: its workers never change", facts().name);
}

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
  check_modules(context, *strategy);
  const bool has_tables = !strategy->replica().tables().empty();
  if (!context.identity().is_evaluator)
    warn_of_unused_flags(
        context, {.strategy = asked.empty() ? strategy->facts().name : asked, .has_tables = has_tables});
  return strategy;
}

std::unique_ptr<DataParallel> make_strategy(const Context& context,
                                            const std::shared_ptr<torch::nn::Module>& module,
                                            Parameters& parameters, const OptimizerOptions& optimizer,
                                            const StrategyOptions& options, AllReduce** all_reduce) {
  require_worker(context, options);
  ReplicaOptions replica = replica_options(context, parameters.layout());
  replica.device = parameters.device();
  replica.parameters = &parameters;
  auto strategy = make_data_parallel(context, {.module = module, .loss = {}, .predict = {}, .script = {}},
                                     optimizer, replica, options, all_reduce);
  check_modules(context, *strategy);
  return strategy;
}

}  // namespace tutti
