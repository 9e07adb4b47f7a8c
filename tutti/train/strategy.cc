#include "tutti/train/strategy.h"

#include <utility>

#include "tutti/base/check.h"
#include "tutti/cluster/roles.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/strategies/in_graph.h"
#include "tutti/train/strategies/parameter_servers.h"

namespace tutti {

Batch take(data::BatchQueue& queue, int64_t step) {
  auto batch = queue.next();
  TUTTI_CHECK(batch.has_value(), "the feed ended before step {}", step);
  return *std::move(batch);
}

std::unique_ptr<Strategy> make_strategy(const Context& context, const Trainable& model,
                                        const OptimizerOptions& optimizer, const StrategyOptions& options) {
  context.require_worker();
  const std::string& asked = context.config().training.strategy;
  const ReplicaOptions replica = replica_options(context, *model.module);
  if (asked == "in-graph") {
    if (context.is_chief())
      return std::make_unique<InGraphMaster>(context, model, optimizer, replica, options.clip_norm);
    return std::make_unique<InGraphWorker>(context, model, optimizer, replica);
  }
  const bool by_servers = asked.empty() ? has_servers(context.cluster()) && !options.group
                                        : asked == "ps-sync" || asked == "ps-async";
  if (by_servers && options.group)
    fail(ErrorKind::InvalidArgument,
         "--strategy {} cannot be used for a group of the workers, since the servers belong to all of them: "
         "use --strategy allreduce",
         asked);
  if (by_servers)
    return std::make_unique<ParameterServers>(context, model, optimizer, replica, options.clip_norm);
  return std::make_unique<AllReduce>(context, options.group ? *options.group : connect(context), model,
                                     optimizer, replica, options.clip_norm);
}

}  // namespace tutti
