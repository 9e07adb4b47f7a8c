#include "tutti/train/together.h"

#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/agreement.h"

namespace tutti {

Session::Start start_together(const Context& context, comm::Communicator& comm, Session& session) {
  Session::Start start;
  on_chief(context, comm, {.what = "the checkpoint"}, [&] { start = session.start(); });
  if (comm.world() == 1) return start;
  Json told = to_json(start.progress);
  told["lanes"] = session.lanes();
  const auto all = gather_all(comm, comm.rank() == 0 ? told.dump() : std::string(), "the progress");
  const Json chiefs = Json::parse(all[0]);
  start.progress = progress_of(chiefs);
  session.follow(chiefs.at("lanes").get<int64_t>());
  return start;
}

void require_whole_group(const Context& context, const comm::Communicator& comm) {
  if (context.flags().logdir.empty() || context.world() == 1) return;
  if (comm.world() == context.world() && (comm.rank() == 0) == context.is_chief()) return;
  fail(ErrorKind::InvalidArgument,
       "the communicator of this training connects {} of the {} workers, or numbers them differently, but "
       "--logdir is {}: checkpoints are only supported if all workers train together. Train without a log "
       "directory (context.with_run(\"\", \"never\")) and save the weights yourself",
       comm.world(), context.world(), context.flags().logdir);
}

RunFacts facts_of(const Context& context, const ReducerOptions& reducer, double clip_norm, int world,
                  const Parameters& parameters) {
  ReducerOptions how = reducer;
  how.scatter = false;  // the distribution of the optimiser's state does not change the result
  RunFacts facts{.settings = {{"clip-norm", clip_norm}, {"reduction", to_string(how)}},
                 .conditions = {{"threads", context.threads()}}};
  // Recorded only if the result depends on the number of workers.
  const bool rounded = how.wire != torch::ScalarType::Undefined;
  if (how.fast || rounded || !parameters.communicator_users().empty()) facts.conditions["workers"] = world;
  return facts;
}

void merge(comm::Communicator& comm, metrics::Metric& metric) {
  if (comm.world() == 1) return;
  const auto all = gather_all(comm, torch::tensor(metric.counters(), torch::kDouble), "metrics");
  metric.reset();
  for (const torch::Tensor& theirs : all)
    metric.merge({static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

}  // namespace tutti
