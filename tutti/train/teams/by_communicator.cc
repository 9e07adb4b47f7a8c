#include "tutti/train/teams/by_communicator.h"

#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/agreement.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/module_group.h"
#include "tutti/train/strategies/synchronous.h"

namespace tutti {

ByCommunicator::ByCommunicator(const Context& context, std::shared_ptr<comm::Communicator> comm,
                               double clip_norm)
    : context_(context),
      comm_(std::move(comm)),
      clip_norm_(clip_norm),
      sharded_(context.flags().optimizer_state == "sharded"),
      timeline_file_(context, *comm_) {
  if (context.flags().strategy == "single" && comm_->world() > 1) {
    fail(ErrorKind::InvalidArgument,
         "--strategy single is for one process, but there are {} workers (found through {})", comm_->world(),
         context.identity().source);
  }
}

void ByCommunicator::place(ReplicaOptions& options) {
  options.before_allocate = [this](const Parameters& parameters, const OptimizerOptions& optimizer) {
    require_unpinned(parameters, context_.cluster());
    require_same(plan_of(parameters, optimizer));
  };
  options.allocate = shared_allocator(*comm_, options.device);
  options.part = sharded_ ? comm_->rank() : 0;
  options.parts = sharded_ ? comm_->world() : 1;
}

// Rank 0 alone reads the checkpoint: the others may be on machines without it.
Team::Start ByCommunicator::start(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  Session::Start start;
  on_chief(context_, *comm_, {.what = "the checkpoint"}, [&] { start = session.start(); });
  Progress progress = start.progress;
  if (comm_->world() > 1) progress = agree(session, replica, plan, progress);
  replica.optimizer().restore(broadcast(*comm_, start.optimizer, 0));
  return {progress,
          std::make_unique<Synchronous>(replica, *comm_, session.lanes(),
                                        SynchronousOptions{clip_norm_, reducer_options(context_.flags())}),
          0};
}

Progress ByCommunicator::agree(Session& session, Replica& replica, const std::vector<std::string>& plan,
                               const Progress& progress) {
  require_same(plan);
  const torch::Tensor numbers = torch::tensor({progress.step, progress.fit, progress.fit_begin,
                                               progress.examples, progress.restarts, session.lanes()},
                                              torch::kInt64);
  comm_->broadcast(numbers, 0, {.what = "the progress"});
  const auto* n = static_cast<const int64_t*>(numbers.data_ptr());
  session.follow(n[5]);
  module_group_ = give_group(replica.parameters(), *comm_, session.lanes());
  broadcast(*comm_, replica.parameters(), 0);
  warn_of_idle_workers(context_, *comm_, session.lanes());
  return {n[0], n[1], n[2], n[3], n[4]};
}

void ByCommunicator::require_same(const std::vector<std::string>& plan) {
  if (comm_->world() > 1) require_same_plan(*comm_, plan);
}

void ByCommunicator::save(Session& session, Replica& replica, const Progress& progress) {
  Optimizer::State state;
  if (sharded_ && comm_->world() > 1) {
    state = gather_state(*comm_, replica.parameters(), replica.optimizer());
  } else if (is_chief()) {
    state = replica.optimizer().state();
  }
  on_chief(context_, *comm_, {.what = "the checkpoint", .step = progress.step},
           [&] { session.save(progress, state); });
}

void ByCommunicator::merge(metrics::Metric& metric) {
  if (comm_->world() == 1) return;
  const auto all = gather_all(*comm_, torch::tensor(metric.counters(), torch::kDouble), "metrics");
  metric.reset();
  for (const torch::Tensor& theirs : all)
    metric.merge({static_cast<const double*>(theirs.data_ptr()), static_cast<size_t>(theirs.numel())});
}

void ByCommunicator::abandon(const std::string& why) noexcept {
  comm_->abandon(why);
  if (module_group_) module_group_->abandon(why);
}

}  // namespace tutti
