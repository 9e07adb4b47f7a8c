#include "tutti/train/teams/by_communicator.h"

#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/params/agreement.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/module_group.h"
#include "tutti/params/residuals.h"
#include "tutti/train/strategies/synchronous.h"

namespace tutti {

ByCommunicator::ByCommunicator(const Context& context, std::shared_ptr<comm::Communicator> comm,
                               double clip_norm)
    : context_(context), comm_(std::move(comm)), clip_norm_(clip_norm), timeline_file_(context, *comm_) {
  if (context.flags().strategy == "single" && comm_->world() > 1) {
    fail(ErrorKind::InvalidArgument,
         "--strategy single is for one process, but there are {} workers (found through {})", comm_->world(),
         context.identity().source);
  }
}

// In shared memory, sharding writes only the own part a second time, which costs less than updating all.
bool ByCommunicator::is_to_be_sharded(torch::Device device) const {
  const Flags& flags = context_.flags();
  if (comm_->world() == 1) return false;
  if (flags.optimizer_state != "auto") return flags.optimizer_state == "sharded";
  return flags.reduce == "tree" && device.is_cpu() && comm_->shared() != nullptr;
}

void ByCommunicator::place(ReplicaOptions& options) {
  sharded_ = is_to_be_sharded(options.device);
  options.before_allocate = [this](const Parameters& parameters, const OptimizerOptions& optimizer) {
    require_unpinned(parameters, context_.cluster());
    require_same(plan_of(context_, parameters, optimizer));
  };
  options.allocate = shared_allocator(*comm_, options.device);
  options.part = sharded_ ? comm_->rank() : 0;
  options.parts = sharded_ ? comm_->world() : 1;
}

Team::Start ByCommunicator::start(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  require_same(plan);
  Session::Start start = start_together(context_, *comm_, session);
  if (world() > 1) {
    module_group_ = give_group(replica.parameters(), *comm_, session.lanes());
    broadcast(*comm_, replica.parameters(), 0);
    warn_of_idle_workers(context_, *comm_, session.lanes());
  }
  say_placement(context_, replica.parameters(), lanes_of(comm_->rank(), world(), session.lanes()));
  ReducerOptions reducer = reducer_options(context_.flags());
  reducer.scatter = sharded_;
  auto strategy = std::make_unique<Synchronous>(replica, *comm_, session.lanes(),
                                                SynchronousOptions{clip_norm_, reducer});
  Optimizer::State& state = start.optimizers.front();
  restore_residuals(context_, *comm_, replica.parameters(), strategy->mean(), state);
  replica.optimizer().restore(broadcast(*comm_, state, 0));
  mean_ = &strategy->mean();
  return {start.progress, std::move(strategy), 0};
}

void ByCommunicator::require_same(const std::vector<std::string>& plan) {
  if (comm_->world() > 1) require_same_plan(context_, *comm_, plan);
}

void ByCommunicator::require_same_fit(const MakePlan& make) {
  if (world() == 1) return;
  std::vector<std::string> plan;
  try {
    plan = make();
  } catch (const std::exception& error) {
    abandon(fmt::format("{} could not inspect its data: {}", context_.task().short_name(), error.what()));
    throw;
  }
  require_same(plan);
}

void ByCommunicator::save(Session& session, Replica& replica, const Progress& progress) {
  Optimizer::State state;
  if (sharded_) {
    state = gather_state(*comm_, replica.parameters(), replica.optimizer());
  } else if (is_chief()) {
    state = replica.optimizer().state();
  }
  gather_residuals(*comm_, replica.parameters(), *mean_, state);
  on_chief(context_, *comm_, {.what = "the checkpoint", .step = progress.step},
           [&] { session.save(progress, {state}); });
}

void ByCommunicator::abandon(const std::string& why) noexcept {
  comm_->abandon(why);
  if (module_group_) module_group_->abandon(why);
}

}  // namespace tutti
