#include "tutti/train/teams/driving.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/params/device_scope.h"
#include "tutti/ps/client.h"
#include "tutti/train/passive/lane_wire.h"
#include "tutti/train/session.h"
#include "tutti/train/strategies/in_graph.h"
#include "tutti/train/teams/alone.h"

namespace tutti {

Driving::Driving(const Context& context, const Trainable& model, double clip_norm)
    : context_(context),
      model_(model),
      clip_norm_(clip_norm),
      workers_(static_cast<int>(passive::tasks_of(context.cluster()).size())),
      arena_(std::make_shared<rpc::Arena>()),
      alone_(group_of_one()),
      timeline_file_(context.timeline(), *alone_, timeline_of_its_own(context)) {
  if (workers_ == 0) {
    fail(ErrorKind::InvalidArgument,
         "--strategy in-graph needs workers in addition to the master, but the cluster (found through {}) "
         "has none with an address: start it with `tutti run -n 2 -- ...`, or name them in --cluster_spec",
         context.identity().source);
  }
}

// Batches and sums travel over the network, so a GPU would be useful only to the workers.
void Driving::place(ReplicaOptions& options) {
  options.device = torch::kCPU;
  options.allocate = ps::arena_allocator(arena_);
}

Team::Start Driving::start(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  if (!replica.parameters().communicator_users().empty() && workers_ > 1) {
    fail(ErrorKind::InvalidArgument,
         "SyncBatchNorm is not supported with passive workers, since they are not connected to each other: "
         "use BatchNorm, or --strategy allreduce");
  }
  Session::Start found = session.start();
  replica.optimizer().restore(found.optimizers.front());
  master_.emplace(context_, model_, replica, arena_);
  Json progress = to_json(found.progress);
  master_->begin({.plan = plan, .lanes = session.lanes(), .progress = std::move(progress)},
                 found.progress.step);
  say_placement(context_, replica.parameters(), {});
  context_.log().info("{} passive {} connected", workers_, workers_ == 1 ? "worker" : "workers");
  return {found.progress, std::make_unique<InGraph>(replica, *master_, session.lanes(), clip_norm_), 0};
}

// The progress is for a worker that comes back.
void Driving::set_progress(const Progress& progress) { master_->all().set_progress(to_json(progress)); }

void Driving::save(Session& session, Replica& replica, const Progress& progress) {
  session.save(progress, {replica.optimizer().state()});
}

void Driving::finish_fit(Strategy& strategy, Progress& progress) {
  master_->all().finish(to_json(progress), dynamic_cast<InGraph&>(strategy).wishes().signal);
}

void Driving::merge(metrics::Metric& metric) {
  master_->all().note(passive::note_of(metric), metric.counters());
}

}  // namespace tutti
