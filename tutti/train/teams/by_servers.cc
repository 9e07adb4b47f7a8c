#include "tutti/train/teams/by_servers.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/agreement.h"
#include "tutti/params/device_scope.h"
#include "tutti/train/stop_signals.h"
#include "tutti/train/strategies/ps_async.h"
#include "tutti/train/strategies/ps_sync.h"
#include "tutti/train/teams/alone.h"

namespace tutti {
namespace {

Json to_json(const Progress& progress, int64_t lanes) {
  Json json = tutti::to_json(progress);
  json["lanes"] = lanes;
  return json;
}

Progress progress_at(int64_t step, const Json& json) {
  Progress progress = progress_of(json);
  progress.step = step;
  return progress;
}

std::string strategy_of(const Context& context) {
  return context.flags().strategy.empty() ? "ps-async" : context.flags().strategy;
}

std::string save_key(int64_t step) { return fmt::format("save {}", step); }

}  // namespace

ByServers::ByServers(const Context& context, double clip_norm)
    : context_(context),
      strategy_(strategy_of(context)),
      clip_norm_(clip_norm),
      arena_(std::make_shared<rpc::Arena>()),
      alone_(group_of_one()),
      timeline_file_(context.timeline(), *alone_, timeline_of_its_own(context)) {
  if (!has_servers(context.cluster())) {
    fail(
        ErrorKind::InvalidArgument,
        "--strategy {} needs parameter servers, but the cluster (found through {}) has no job 'ps': start it "
        "with `tutti run --ps 1 -n {} -- ...`, or name them in --cluster_spec",
        strategy_, context.identity().source, context.world());
  }
  if (context.flags().optimizer_state == "sharded")
    fail(ErrorKind::InvalidArgument,
         "--optimizer-state sharded cannot be used with servers, since the servers hold the optimiser's "
         "state");
}

// A worker that leaves with an error leaves the servers running, since it may come back.
ByServers::~ByServers() {
  if (!client_ || at_work_ || !finished_) return;
  try {
    if (is_chief()) client_->end();
    client_->leave();
  } catch (const std::exception& error) {
    context_.log().warning("could not tell the servers that {}: {}",
                           is_chief() ? "the job is done" : "this worker leaves", error.what());
  }
}

void ByServers::place(ReplicaOptions& options) {
  if (options.device.is_cpu()) options.allocate = ps::arena_allocator(arena_);
}

void ByServers::make_client(Replica& replica) {
  if (!replica.parameters().communicator_users().empty() && world() > 1) {
    fail(ErrorKind::InvalidArgument,
         "SyncBatchNorm is not supported with parameter servers, since their workers are not connected to "
         "each other: use BatchNorm, or --strategy allreduce");
  }
  const ps::Placement placement(replica.parameters(), static_cast<int>(servers_of(context_.cluster()).size()),
                                ps::parse_placement(context_.flags().placement),
                                pinned_servers(replica.parameters(), context_.cluster()));
  client_ = std::make_unique<ps::Client>(context_, replica.parameters(), placement, arena_);
  client_->set_give_up(StopSignals::is_overdue);
  if (context_.flags().log_placement) say_placement(replica);
}

void ByServers::make_vectors(Replica& replica, int64_t lanes) {
  if (vectors_) return;
  vectors_.emplace(replica.parameters(), lanes, ps::arena_allocator(arena_));
  client_->set_extras({vectors_->buffers(), vectors_->counters()});
}

void ByServers::say_placement(const Replica& replica) const {
  const std::string job = servers_of(context_.cluster()).front().job;
  for (const std::string& line : client_->placement().lines(replica.parameters(), job))
    context_.log().info("{}", line);
  const std::vector<LaneRange> blocks = blocks_of(world(), context_.lanes());
  const std::vector<Task> workers = workers_of(context_.cluster());
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    for (int64_t lane = blocks[rank].begin; lane < blocks[rank].end; ++lane)
      context_.log().info("lane {}: (Lane): /job:{}/replica:0/task:{}", lane, workers[rank].job,
                          workers[rank].index);
  }
}

template <class Body>
auto ByServers::until_nobody_is_lost(Body body) {
  constexpr std::chrono::milliseconds kPause{100};
  for (;; std::this_thread::sleep_for(kPause)) {
    client_->connect();
    try {
      return body();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      context_.log().warning("{}; trying again", error.what());
    }
  }
}

// If a server is lost during the start, waits for it and starts once more.
Team::Start ByServers::start(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  at_work_ = true;
  if (!client_) make_client(replica);
  return until_nobody_is_lost([&] { return try_to_start(session, replica, plan); });
}

Team::Start ByServers::try_to_start(Session& session, Replica& replica,
                                    const std::vector<std::string>& plan) {
  std::vector<std::string> whole_plan = plan;
  whole_plan.push_back("strategy " + strategy_);
  whole_plan.push_back(fmt::format("{} workers", context_.world()));
  for (const std::string& line : client_->placement().lines(replica.parameters(), "ps"))
    whole_plan.push_back(line);
  const int64_t lost_steps = is_chief() ? begin(session, replica, whole_plan) : 0;
  const ps::Client::Standing standing = client_->join(whole_plan);
  session.follow(standing.progress.at("lanes").get<int64_t>());
  lanes_ = session.lanes();
  warn_of_other_threads(context_, standing.progress.value("threads", context_.threads()));
  make_vectors(replica, lanes_);
  const int64_t step = client_->pull();
  vectors_->take_over_buffers();
  begun_ = true;
  // The other workers may be waiting for the checkpoint that this task was to write when it was lost.
  if (is_chief()) client_->note(save_key(step), true);
  return {progress_at(step, standing.progress), make_strategy(replica, session.lanes()), lost_steps};
}

// Begins the run, unless the chief has been restarted and finds it running. If a server has lost its part of
// the parameters, all tasks return to the newest checkpoint. Returns the number of steps that are lost by
// this.
int64_t ByServers::begin(Session& session, Replica& replica, const std::vector<std::string>& plan) {
  if (const auto standing = client_->standing()) {
    session.go_on(standing->step);
    return 0;
  }
  const int64_t furthest = client_->furthest_step();
  Session::Start found = session.start();
  if (begun_ && found.progress.restarts == 0) {
    fail(ErrorKind::DataLoss,
         "a parameter server has lost its part of the parameters at step {}, and there is no checkpoint to "
         "restore: give a --logdir",
         furthest);
  }
  make_vectors(replica, session.lanes());
  vectors_->begin_step();
  if (found.progress.restarts == 0) session.save(found.progress, found.optimizers);
  const int64_t lost_steps = std::max<int64_t>(0, furthest - found.progress.step);
  if (lost_steps > 0)
    context_.log().warning(
        "a server has lost its part of the parameters: all tasks return from step {} to {}", furthest,
        found.progress.step);
  Json progress = to_json(found.progress, session.lanes());
  progress["threads"] = context_.threads();
  client_->begin({.strategy = strategy_,
                  .lanes = session.lanes(),
                  .backup = strategy_ == "ps-sync" ? context_.flags().backup : 0,
                  .staleness = context_.flags().staleness,
                  .clipped = clip_norm_ > 0,
                  .optimizer = replica.optimizer().options()},
                 {found.progress.step, std::move(progress)}, found.optimizers.front(), plan);
  for (const auto& [key, counters] : counted_) client_->note(key, counters);
  return lost_steps;
}

std::unique_ptr<Strategy> ByServers::make_strategy(Replica& replica, int64_t lanes) {
  if (strategy_ == "ps-sync") {
    return std::make_unique<PsSync>(replica, *client_, *vectors_,
                                    PsSyncOptions{.rank = context_.rank(),
                                                  .world = world(),
                                                  .lanes = lanes,
                                                  .backup = context_.flags().backup,
                                                  .clip_norm = clip_norm_,
                                                  .timeline = context_.timeline()});
  }
  if (lanes < world())
    fail(ErrorKind::InvalidArgument,
         "ps-async needs a lane for each of the {} workers, but there are {} lanes", world(), lanes);
  return std::make_unique<PsAsync>(
      replica, *client_, *vectors_,
      PsAsyncOptions{.rank = context_.rank(),
                     .world = world(),
                     .lanes = lanes,
                     .clip_norm = clip_norm_,
                     .overlap = context_.flags().overlap && context_.flags().staleness != 0,
                     .allocate = ps::arena_allocator(arena_),
                     .timeline = context_.timeline()});
}

void ByServers::require_same_fit(const MakePlan& make) {
  if (world() == 1) return;
  const std::vector<std::string> plan = make();
  try {
    client_->agree(plan.front(), plan);
  } catch (const Error& error) {
    // If a task is lost now, the first step finds out, and handles it.
    if (error.kind() != ErrorKind::PeerLost) throw;
  }
}

void ByServers::set_progress(const Progress& progress) {
  at_work_ = true;
  if (!is_chief()) return;
  try {
    client_->set_progress(to_json(progress, lanes_));
  } catch (const Error& error) {
    // If a task is lost now, the first step finds out, and handles it.
    if (error.kind() != ErrorKind::PeerLost) throw;
  }
}

// If workers make every step together, they wait for the checkpoint, as without servers; else they go on.
void ByServers::save(Session& session, Replica& /*replica*/, const Progress& progress) {
  const std::string key = save_key(progress.step);
  const bool in_step = is_in_step();
  if (is_chief()) {
    const ps::Client::Snapshot snapshot = client_->snapshot();
    vectors_->take_over_buffers();
    Progress saved = progress;
    saved.step = snapshot.step;
    saved.examples = snapshot.progress.value("examples", progress.examples);
    session.save(saved, {snapshot.state});
    if (in_step) client_->note(key, true);
  } else if (in_step) {
    client_->read(key);
  }
}

// Records that the fit has stopped: no other worker would make a step with one that comes back now.
void ByServers::say_stopped() {
  until_nobody_is_lost([&] {
    std::optional<ps::Client::Standing> standing = client_->standing();
    if (!standing) return;
    standing->progress["stopped"] = true;
    client_->set_progress(standing->progress);
  });
}

void ByServers::finish_fit(Strategy& strategy, Progress& progress) {
  progress.step = strategy.finish(progress.step);
  if (progress.stopped && is_chief() && is_in_step()) say_stopped();
  const int64_t fits = progress.fit + 1;
  client_->finish(fits);
  const std::string key = fmt::format("fit {}", fits);
  if (is_chief()) {
    client_->await_others(fits);
    client_->note(key, true);
  } else {
    client_->read(key);
  }
  progress.step = client_->pull();
  vectors_->take_over_buffers();
  standing_ = client_->standing().value_or(standing_);
  progress.examples = standing_.progress.value("examples", progress.examples);
  at_work_ = false;
  finished_ = true;
}

// The chief has counted everything. A server that is lost in the meantime does not change the counts.
void ByServers::merge(metrics::Metric& metric) {
  const std::string key = fmt::format("metric {}", merges_++);
  if (is_chief()) {
    counted_[key] = metric.counters();
    until_nobody_is_lost([&] {
      for (const auto& [counted, counters] : counted_) client_->note(counted, counters);
    });
    return;
  }
  const auto counters =
      until_nobody_is_lost([&] { return client_->read_from_any_run(key); }).get<std::vector<double>>();
  metric.reset();
  metric.merge(counters);
}

void ByServers::fill(store::Report& report) const {
  report.staleness = standing_.staleness;
  report.dropped_gradients = standing_.dropped;
}

void ByServers::abandon(const std::string& /*why*/) noexcept {}

}  // namespace tutti
