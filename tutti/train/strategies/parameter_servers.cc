#include "tutti/train/strategies/parameter_servers.h"

#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>
#include <torch/utils.h>

#include "tutti/base/error.h"
#include "tutti/cluster/roles.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/plan.h"
#include "tutti/train/snapshot.h"
#include "tutti/train/stop_signals.h"
#include "tutti/train/strategies/connected.h"

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

std::string name_of(const Context& context, const OptimizerOptions& optimizer) {
  const std::string& asked = context.config().training.strategy;
  const std::string name = asked.empty() ? "ps-async" : asked;
  if (!has_servers(context.cluster()))
    fail(
        ErrorKind::InvalidArgument,
        "--strategy {} needs parameter servers, but the cluster (found through {}) has no job 'ps': start it "
        "with `tutti run --ps 1 -n {} -- ...`, or name them in --cluster_spec",
        name, context.identity().source, context.world());
  if (context.config().reduction.optimizer_state == "sharded")
    fail(ErrorKind::InvalidArgument,
         "--optimizer-state sharded cannot be used with servers, since the servers hold the optimiser's "
         "state");
  if (!context.identity().members_board.empty() && (name != "ps-sync" || context.config().servers.backup > 0))
    fail(ErrorKind::InvalidArgument,
         "tutti run --min with parameter servers needs --strategy ps-sync, without --backup: in every other "
         "way "
         "of training the others go on without a lost worker by themselves. Omit --min");
  require_elementwise(optimizer, "--strategy " + name);
  return name;
}

// Runs the body, and ignores that a task was lost: the first step will find out, and handle it.
template <class Body>
void unless_lost(Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PeerLost) throw;
  }
}

// The key of the chief's note that this many fits are complete.
std::string fit_key(int64_t fits) { return fmt::format("fit {}", fits); }

}  // namespace

ParameterServers::ParameterServers(const Context& context, Group group, const Trainable& model,
                                   const OptimizerOptions& optimizer, const ReplicaOptions& replica,
                                   const StrategyOptions& options)
    : context_(context),
      group_(std::move(group)),
      clip_norm_(options.clip_norm),
      arena_(std::make_shared<rpc::Arena>()),
      facts_{.name = name_of(context, optimizer),
             .restarts = true,
             .survives = connected() != nullptr,
             .keeps_parameters_elsewhere = true},
      replica_(model, optimizer, in_arena(replica, arena_)),
      timeline_file_(context) {
  facts_.in_step = facts_.name == "ps-sync" && context.config().servers.backup == 0;
  know_part_of_evaluations();
  if (options.lanes > 0) know_lanes(options.lanes);
  for (const auto& table : replica_.tables().tables()) {
    if (table->has_rows_alone()) rows_alone_.push_back(embedding::rows_alone(table->alone()));
  }
}

// A worker that leaves with an error leaves the servers running, since it may come back.
ParameterServers::~ParameterServers() {
  if (!client_ || at_work_ || fits_ == 0) return;
  try {
    if (group_.is_chief()) client_->end();
    client_->leave();
  } catch (const std::exception& error) {
    context_.log().warning("could not tell the servers that {}: {}",
                           group_.is_chief() ? "the job is done" : "this worker leaves", error.what());
  }
}

void ParameterServers::make_client() {
  const ps::Placement placement(replica_.parameters(),
                                static_cast<int>(servers_of(context_.cluster()).size()),
                                ps::parse_placement(context_.config().servers.placement),
                                pinned_servers(replica_.parameters(), context_.cluster()));
  const bool has_copies = connected() != nullptr && placement.servers() > 1 && replica_.tables().empty();
  client_ = std::make_unique<ps::Client>(
      context_, group_, replica_.parameters(), placement, arena_,
      ps::ClientOptions{.replicas = has_copies ? context_.config().reduction.replicas : 0});
  client_->set_give_up(StopSignals::is_overdue);
  if (connected() != nullptr) client_->enter_epoch(group_);
  rows_ = std::make_unique<ps::ServerRows>(*client_, [this] {
    if (steps_) steps_->settle();
  });
  replica_.tables().connect(*rows_);
  if (context_.config().output.log_placement) say_placement();
}

void ParameterServers::make_vectors(int64_t lanes) {
  if (vectors_) return;
  vectors_.emplace(replica_.parameters(), lanes, ps::arena_allocator(arena_));
  client_->set_extras({vectors_->buffers(), vectors_->counters()});
}

void ParameterServers::say_placement() const {
  const std::string job = servers_of(context_.cluster()).front().job;
  for (const std::string& line : client_->placement().lines(replica_.parameters(), job))
    context_.log().info("{}", line);
  const std::vector<LaneRange> ranges = lanes_of_all(group_.world, lanes_for(context_, group_));
  const std::vector<Task> workers = workers_of(context_.cluster());
  for (int rank = 0; rank < group_.world; ++rank) {
    const LaneRange& range = ranges[static_cast<size_t>(rank)];
    const Task& worker = workers.at(static_cast<size_t>(group_.rank_in_job(rank)));
    for (int64_t lane = range.begin; lane < range.end; ++lane)
      context_.log().info("lane {}: (Lane): /job:{}/replica:0/task:{}", lane, worker.job, worker.index);
  }
}

template <class Body>
auto ParameterServers::until_nobody_is_lost(Body body) {
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
Strategy::Start ParameterServers::start(Session& session, const std::vector<std::string>& plan) {
  at_work_ = true;
  if (!client_) make_client();
  mark_lost_writers();
  if (connected() != nullptr) {
    client_->connect();
    return try_to_start(session, plan);
  }
  return until_nobody_is_lost([&] { return try_to_start(session, plan); });
}

Strategy::Start ParameterServers::try_to_start(Session& session, const std::vector<std::string>& plan) {
  const std::vector<std::string> whole = whole_plan(plan);
  // This may be tried again, after another task was lost.
  if (connected() != nullptr)
    begin_connected(session, whole);
  else if (group_.is_chief())
    lost_steps_ += begin(session, whole);
  const ps::Client::Standing standing = client_->join(whole);
  client_->pull_frozen();
  session.follow(standing.progress.at("lanes").get<int64_t>());
  know_lanes(session.lanes());
  make_vectors(lanes_);
  const int64_t step = client_->pull();
  vectors_->take_over_buffers();
  begun_ = true;
  last_step_ = step;
  // The other workers may be waiting for the checkpoint that this task was to write when it was lost.
  if (group_.is_chief() && connected() == nullptr) client_->note(save_key(step), true);
  make_steps(lanes_);
  rows_->at_step(facts_.in_step ? std::optional(step) : std::nullopt);
  if (std::exchange(saves_start_, false))
    save_state(session, progress_at(step, standing.progress), session.state());
  if (group_.is_chief()) sum_up_rows();
  return {progress_at(step, standing.progress), std::exchange(lost_steps_, 0), std::exchange(found_, {})};
}

std::vector<std::string> ParameterServers::whole_plan(const std::vector<std::string>& plan) const {
  std::vector<std::string> whole = plan;
  whole.push_back("strategy " + facts_.name);
  whole.push_back(fmt::format("{} workers", first_world(context_, group_)));
  if (client_->has_copies()) whole.push_back("a copy of each server's part");
  for (const std::string& line : client_->placement().lines(replica_.parameters(), "ps"))
    whole.push_back(line);
  return whole;
}

// Takes part in the run that the servers have at this step, and returns true. In a training whose bits are
// the same however often a task is lost, returns false if a chief that was restarted, or that has missed the
// answer to its last step, cannot know the moving average or the state of its hooks at this step.
bool ParameterServers::takes_part(Session& session, int64_t step) {
  Session::Parts parts = session.newest_parts(step);
  if (begun_ && (!facts_.in_step || step == last_step_)) return true;  // with what this task has in memory
  if (!parts.outdated.empty()) {
    if (facts_.in_step && parts.step) return false;
    context_.log().warning("this task joins the training at step {}, but these parts of its state {}: {}",
                           step,
                           parts.step ? fmt::format("are from step {}", *parts.step)
                                      : "begin again, since there is no checkpoint",
                           fmt::join(parts.outdated, ", "));
  }
  if (begun_) return true;
  session.go_on(step);
  found_ = std::move(parts.snapshots);
  return true;
}

// Begins the run, or takes part in it if it is running. If that is not possible, or if a server has lost its
// part of the parameters, all tasks return to the newest checkpoint. Returns the number of steps that are
// lost by this.
int64_t ParameterServers::begin(Session& session, const std::vector<std::string>& plan) {
  const auto standing = client_->standing();
  mark_lost_writers();
  await_writers(session);
  if (standing && takes_part(session, standing->step)) return 0;
  Session::Start found = session.start();
  found_ = std::move(found.more);
  const int64_t lost_steps = begin_from(session, found, plan);
  if (lost_steps > 0)
    context_.log().warning(
        "{}: all tasks return from step {} to {}",
        standing ? "the chief has lost a part of its state" : "a server has lost its part of the parameters",
        found.progress.step + lost_steps, found.progress.step);
  return lost_steps;
}

// Begins the run with this state. Returns the number of steps that are lost by this.
int64_t ParameterServers::begin_from(Session& session, const Session::Start& found,
                                     const std::vector<std::string>& plan) {
  const int64_t furthest = std::max(client_->furthest_step(), last_step_);  // new servers know of no step
  const bool is_at_start =
      furthest == 0 && !has_stepped_;  // the parameters here are still those of the start
  if (begun_ && !is_at_start && found.progress.restarts == 0) {
    fail(ErrorKind::DataLoss,
         "a parameter server has lost its part of the parameters at step {}, and there is no checkpoint to "
         "restore: give a --logdir",
         furthest);
  }
  make_vectors(session.lanes());
  vectors_->begin_step();
  // Rows can be saved once the servers have them.
  const bool has_rows = !replica_.tables().empty();
  saves_start_ = found.progress.restarts == 0 && has_rows;
  if (found.progress.restarts == 0 && !has_rows)
    session.save(found.progress, found.optimizers, session.state());
  Json progress = to_json(found.progress, session.lanes());
  client_->begin_rows(rows_to_begin(found));
  client_->begin({.strategy = facts_.name,
                  .lanes = session.lanes(),
                  .backup = facts_.name == "ps-sync" ? context_.config().servers.backup : 0,
                  .staleness = context_.config().servers.staleness,
                  .clipped = clip_norm_ > 0,
                  .optimizer = replica_.optimizer().options(),
                  .has_rows = has_rows},
                 {found.progress.step, std::move(progress)}, found.optimizers.front(), plan);
  last_step_ = found.progress.step;
  for (const auto& [key, value] : shared_) client_->note(key, value);
  return std::max<int64_t>(0, furthest - found.progress.step);
}

// The rows of the checkpoint, if there are any, or those that tables had before the training.
ps::RowsToBegin ParameterServers::rows_to_begin(const Session::Start& found) const {
  ps::RowsToBegin rows{.tables = replica_.tables().specs(replica_.optimizer().options()),
                       .seed = context_.config().training.seed};
  if (rows.tables.empty()) return rows;
  if (found.rows.empty()) {
    if (found.progress.restarts > 0)
      fail(ErrorKind::InvalidArgument,
           "the checkpoint has no rows of sharded tables: it belongs to another model, or to one whose "
           "tables were small enough to be replicated");
    rows.all = [this](const embedding::VisitRows& visit_rows) {
      for (const embedding::RowChunk& alone : rows_alone_)
        for_each_chunk(alone.table, alone.rows, visit_rows);
    };
    return rows;
  }
  const auto parts = found.has_optimizer ? embedding::RowParts::All : embedding::RowParts::Weights;
  const auto passing = [&](const Snapshot& saved, bool changed) {
    const auto all = std::make_shared<embedding::SavedRows>(saved);
    all->require_complete(rows.tables, parts, changed);
    if (found.has_optimizer) rows.averaged_steps = all->averaged_steps();
    for (const embedding::TableSpec& table : rows.tables)
      rows.counts[table.name] = all->counts_of(table.name);
    return [all, parts](const embedding::VisitRows& visit_rows) { all->for_each(parts, visit_rows); };
  };
  rows.all = passing(found.rows, false);
  rows.all_are_saved = found.has_optimizer;
  if (found.changed_rows) rows.changed = passing(*found.changed_rows, true);
  return rows;
}

Snapshot ParameterServers::rows() {
  settle();
  return {client_->all_rows(replica_.tables().values()),
          embedding::saved_facts(replica_.tables().specs(replica_.optimizer().options()), {}, 0)};
}

void ParameterServers::sum_up_rows() {
  if (!replica_.tables().empty()) rows_summary_ = client_->sum_up_rows();
}

void ParameterServers::know_lanes(int64_t lanes) {
  lanes_ = lanes;
  facts_.lanes = lanes_of(group_.rank, group_.world, lanes);
  // With ps-async, a step is the push of one worker with lanes.
  facts_.steps_per_batch = facts_.name == "ps-sync" ? 1 : std::min<int64_t>(group_.world, lanes);
}

// Workers that are not connected may be at different steps, or lost: the chief evaluates alone.
void ParameterServers::know_part_of_evaluations() {
  const int alone = group_.is_chief() ? 0 : -1;
  facts_.evaluation_part = connected() != nullptr ? group_.rank : alone;
  facts_.evaluation_parts = connected() != nullptr ? group_.world : 1;
}

void ParameterServers::make_steps(int64_t lanes) {
  const RunConfig::Servers& config = context_.config().servers;
  const ServerStepsOptions options{.rank = group_.rank,
                                   .world = group_.world,
                                   .lanes = lanes,
                                   .clip_norm = clip_norm_,
                                   .backup = config.backup,
                                   .overlap = config.overlap && config.staleness != 0,
                                   .allocate = ps::arena_allocator(arena_),
                                   .timeline = context_.timeline()};
  if (facts_.name == "ps-sync") {
    steps_ = std::make_unique<PsSync>(replica_, *client_, *rows_, *vectors_, options);
    return;
  }
  if (lanes < group_.world)
    fail(ErrorKind::InvalidArgument,
         "ps-async needs a lane for each of the {} workers, but there are {} lanes, given by --lanes or by "
         "the "
         "checkpoint: start fewer workers, or add --lanes {} --resume anyway",
         group_.world, lanes, group_.world);
  steps_ = std::make_unique<PsAsync>(replica_, *client_, *rows_, *vectors_, options);
}

LaneSum& ParameterServers::begin_step(int64_t step, const Wishes& wishes) {
  if (!steps_)
    fail(ErrorKind::InvalidArgument,
         "--strategy {}: nobody has begun the run on the servers. Make the steps in a tutti::Loop, whose "
         "first goes_on() begins it",
         facts_.name);
  has_stepped_ = true;
  return steps_->begin_step(step, wishes);
}

void ParameterServers::require_same(const std::vector<std::string>& plan) {
  if (connected() != nullptr) {
    if (group_.world > 1) require_same_plan(context_, *connected(), plan);
    return;
  }
  ++fit_calls_;
  shares_ = 0;
  unless_lost([&] { client_->agree(plan.front(), plan); });
}

// A task that was set back to the end of an earlier fit waits there for the others, who have passed it.
void ParameterServers::set_progress(const Progress& progress) {
  at_work_ = true;
  if (connected() != nullptr) return;  // it takes over the state of another worker
  unless_lost([&] {
    if (!group_.is_chief()) {
      if (progress.fit > 0) client_->finish(progress.fit);
      return;
    }
    client_->set_progress(to_json(progress, lanes_));
    if (progress.fit == 0) return;
    client_->note(fit_key(progress.fit), true);
    client_->note(saved_key(progress.fit), true);
  });
}

// Records that the fit has stopped: no other worker would make a step with one that comes back now.
void ParameterServers::say_stopped() {
  until_nobody_is_lost([&] {
    std::optional<ps::Client::Standing> standing = client_->standing();
    if (!standing) return;
    standing->progress["stopped"] = true;
    client_->set_progress(standing->progress);
  });
}

// Waits for the last updates of the other workers.
void ParameterServers::await_fit(const Progress& progress, int64_t fits) {
  if (progress.stopped && group_.is_chief() && facts_.in_step) say_stopped();
  client_->finish(fits);
  const std::string key = fit_key(fits);
  if (group_.is_chief()) {
    client_->await_others(fits);
    client_->note(key, true);
  } else {
    client_->read(key);
  }
}

void ParameterServers::finish(Progress& progress) {
  progress.step = steps_->finish(progress.step);
  const int64_t fits = progress.fit + 1;
  if (connected() != nullptr)
    connected()->barrier({.what = "the last updates", .step = progress.step}).wait();
  else
    await_fit(progress, fits);
  progress.step = client_->pull();
  vectors_->take_over_buffers();
  standing_ = client_->standing().value_or(standing_);
  progress.examples = standing_.progress.value("examples", progress.examples);
  rows_->at_step({});
  if (group_.is_chief()) sum_up_rows();
  at_work_ = false;
  fits_ = fits;
}

// A server that is lost in the meantime does not change the value. Called between fits, so that a task that
// was restarted makes the same calls, with the same keys.
Json ParameterServers::share(const std::string& what, const MakeValue& make) {
  if (connected() != nullptr) return tutti::share(context_, *connected(), what, make);
  const std::string key = fmt::format("{} {} after fit {}", what, shares_++, fit_calls_);
  if (!group_.is_chief())
    return result_of(until_nobody_is_lost([&] { return client_->read_from_any_run(key); }));
  const Json outcome = shared_[key] = outcome_of(make);
  until_nobody_is_lost([&] {
    for (const auto& [name, one] : shared_) client_->note(name, one);
  });
  return result_of(outcome);
}

void ParameterServers::fill(store::Report& report) const {
  report.strategy = facts_.name;
  report.reduce = steps_->reduce();
  report.world = group_.world;
  report.staleness = standing_.staleness;
  report.dropped_gradients = standing_.dropped;
  if (rows_summary_) add_rows(report, rows_summary_->checksum, rows_summary_->counts);
}

}  // namespace tutti
