#include "tutti/train/strategies/all_reduce.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/this_host.h"
#include "tutti/base/timeline.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/device_scope.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/params/plan.h"
#include "tutti/store/manifest.h"
#include "tutti/store/shared_files.h"
#include "tutti/train/snapshot.h"
#include "tutti/train/strategies/connected.h"
#include "tutti/transport/members.h"

namespace tutti {
namespace {

comm::Communicator& connected(const Context& context, const Group& group) {
  comm::Communicator& comm = *group.connected();
  if (context.config().training.strategy == "single" && comm.world() > 1)
    fail(ErrorKind::InvalidArgument,
         "--strategy single is for one process, but there are {} workers (found through {})", comm.world(),
         context.identity().source);
  if (comm.epochs() == nullptr)
    keep_workers(context, group, "the program trains with a group that was split from all workers");
  return comm;
}

void warn_of_idle_workers(const Context& context, comm::Communicator& comm, int64_t lanes) {
  if (comm.rank() != 0) return;
  const bool is_start = comm.epochs() != nullptr && comm.epochs()->number() == 0;
  if (is_start && lanes >= comm.world() && lanes < context.world())
    context.log().warning(
        "the job may have {} workers, but it has {} lanes: more than {} workers only wait for the others; "
        "use "
        "at least --lanes {}",
        context.world(), lanes, lanes, context.world());
  if (lanes >= comm.world()) return;
  context.log().warning(
      "{} of the {} workers have no lane and only wait for the others: use at least --lanes {}, or "
      "fewer workers",
      comm.world() - lanes, comm.world(), comm.world());
}

// In shared memory, sharding only copies the parts of the others, which costs less than updating all.
bool is_to_be_sharded(const Context& context, comm::Communicator& comm, const OptimizerOptions& optimizer,
                      bool has_tables) {
  const RunConfig::Reduction& asked = context.config().reduction;
  if (optimizer.is_replicated()) return false;
  // A worker with rows has to make a step that is decided without the others (complete_step()).
  if (asked.optimizer_state == "auto" && has_tables && comm.epochs() != nullptr) return false;
  if (asked.optimizer_state != "auto") return asked.optimizer_state == "sharded";
  return asked.order == "tree" && context.device().is_cpu() && comm.shared() != nullptr;
}

}  // namespace

AllReduce::AllReduce(const Context& context, Group group, const Trainable& model,
                     const OptimizerOptions& optimizer, const ReplicaOptions& replica,
                     const StrategyOptions& options)
    : context_(context),
      group_(std::move(group)),
      comm_(connected(context, group_)),
      clip_norm_(options.clip_norm),
      asked_(options.reducer),
      has_tables_(model.module && !embedding::Tables(*model.module).empty()),
      lanes_before_start_(options.lanes > 0 ? options.lanes : lanes_for(context, group_)),
      reducer_(reducer_of(optimizer)),
      replica_(model, optimizer, placed(replica, options.plan)),
      audits_(context),
      timeline_file_(context, &comm_) {
  facts_ = facts_with(lanes_before_start_);
  if (context.identity().is_evaluator)
    facts_ = {.name = "evaluator"};
  else if (options.lanes == 0)
    facts_.name = "allreduce";
  else if (comm_.epochs() == nullptr)
    prepare(options.lanes);
}

// Returns the options that the program gives; if there are none, the options that the flags give.
ReducerOptions AllReduce::reducer_of(const OptimizerOptions& optimizer) const {
  ReducerOptions options = asked_.value_or(reducer_options(context_.config()));
  if (options.scatter) require_elementwise(optimizer, "--optimizer-state sharded");
  if (!asked_) options.scatter = is_to_be_sharded(context_, comm_, optimizer, has_tables_);
  options.scatter = options.scatter && comm_.world() > 1;
  return options;
}

ReplicaOptions AllReduce::placed(ReplicaOptions options, const std::vector<std::string>& further_plan) {
  if (context_.identity().is_evaluator) return options;
  options.before_allocate = [this, further_plan](const Parameters& parameters,
                                                 const OptimizerOptions& optimizer) {
    require_unpinned(parameters, context_.cluster());
    plan_ = plan_of(context_, parameters, optimizer);
    plan_.insert(plan_.end(), further_plan.begin(), further_plan.end());
    if (comm_.epochs() == nullptr) require_same_tasks(plan_);
  };
  // Workers that may change do nothing together before start(): a loss there is like one in the steps.
  if (comm_.epochs() == nullptr) options.allocate = shared_allocator(comm_, options.device);
  options.part = reducer_.scatter ? group_.rank : 0;
  options.parts = reducer_.scatter ? group_.world : 1;
  return options;
}

void AllReduce::require_same(const std::vector<std::string>& plan) {
  if (group_.world > 1) require_same_plan(context_, comm_, plan);
}

void AllReduce::require_same_tasks(const std::vector<std::string>& plan) {
  require_same(plan);
  require_same_kernels(context_, comm_);
}

// For programs that make steps, or move the state, without a start.
void AllReduce::prepare_once() {
  if (mean_) return;
  require_same_tasks(plan_);
  prepare(lanes_before_start_);
}

void AllReduce::require_same_weights(int64_t step, const std::string& sha256) {
  tutti::require_same_weights(context_, comm_, step, sha256);
}

// An evaluator leaves the weights as they are.
Strategy::Start AllReduce::start(Session& session, const std::vector<std::string>& plan) {
  Session::Start start;
  if (!context_.identity().is_evaluator) {
    comm_.epochs() == nullptr ? require_same(plan) : require_same_tasks(plan);
    audits_.may_repeat_steps();
    start = start_together(context_, comm_, session);
    start.optimizers.resize(nets_.size());
    if (!mean_) prepare(session.lanes());
    for (size_t i = 0; i < nets_.size(); ++i) {
      nets_[i]->broadcast_from(0);
      if (start.progress.restarts > 0) nets_[i]->restore(start.optimizers[i]);
    }
  }
  if (replica_.tables().empty()) return {start.progress, 0, std::move(start.more)};
  former_rows_.drop();
  in_flight_.reset();
  evicted_at_ = -1;
  make_rows(session.lanes());
  if (context_.identity().is_evaluator)
    sum_up_rows();
  else
    restore_rows(start, start.has_optimizer ? embedding::RowParts::All : embedding::RowParts::Weights);
  return {start.progress, 0, std::move(start.more)};
}

void AllReduce::prepare(int64_t lanes) {
  Parameters& parameters = replica_.parameters();
  module_group_ = give_group(parameters, comm_, lanes);
  mean_.emplace(parameters, comm_, lanes, reducer_);
  cut_state();
  warn_of_idle_workers(context_, comm_, lanes);
  say_placement(context_, parameters, mean_->lanes());
  const std::string kept = why_not_survive(lanes);
  const bool loses_state = may_change() && !kept.empty() && group_.epoch == 0;
  if (loses_state && !can_go_back(lanes)) keep_workers(context_, group_, kept);
  if (loses_state && can_go_back(lanes) && group_.is_chief())
    context_.log().warning("if a worker is lost, the others go back to the newest checkpoint: {}", kept);
  facts_ = facts_with(lanes);
  facts_.needs_data_in_every_lane = module_group_ != nullptr;
  prepare_audits(lanes, kept);
}

bool AllReduce::may_change() const { return comm_.epochs() != nullptr && nets_.size() == 1; }

StrategyFacts AllReduce::facts_with(int64_t lanes) const {
  const std::string kept = why_not_survive(lanes);
  return {.name = group_.world == 1 ? "single" : "allreduce",
          .lanes = lanes_of(group_.rank, group_.world, lanes),
          .restarts = may_change() && can_go_back(lanes) && (!kept.empty() || !replica_.tables().empty()),
          .survives = may_change() && kept.empty(),
          .evaluation_part = group_.rank,
          .evaluation_parts = group_.world};
}

// `kept` says why the others could not go on without a worker.
void AllReduce::prepare_audits(int64_t lanes, const std::string& kept) {
  const RunConfig& config = context_.config();
  if (config.training.audit == 0) return;
  const auto require = [&](bool holds, const std::string& why) {
    if (!holds) fail(ErrorKind::InvalidArgument, "--audit {}: {}", config.training.audit, why);
  };
  require(
      replica_.parameters().communicator_users().empty(),
      "SyncBatchNorm computes a lane on all workers together, so none can compute it again: use BatchNorm");
  require(!config.compute.mixed_machines,
          "it compares bits, which may differ between processors with --mixed-machines");
  require(nets_.size() == 1, "a loop of several nets cannot make a step again");
  if (config.training.audit_action == "evict" && !facts_.survives && !facts_.restarts)
    fail(ErrorKind::InvalidArgument, "--audit-action evict: {}",
         comm_.epochs() == nullptr ? "the workers cannot change. Start them with `tutti run --min`"
                                   : fmt::format("the others cannot go on without a worker: {}", kept));
  audits_.set_workers(comm_, replica_.parameters(), lanes);
}

void AllReduce::set_other_nets(const std::vector<AllReduce*>& others) {
  nets_ = {this};
  nets_.insert(nets_.end(), others.begin(), others.end());
  if (others.empty()) return;
  if (comm_.epochs() != nullptr)
    keep_workers(context_, group_, "a loop of several nets needs the same workers");
  prepare_audits(0, "");  // throws if there are audits
}

std::optional<int64_t> AllReduce::lane_to_audit(int64_t step) const {
  const std::optional<AuditedLane> audited = audits_.at(step);
  return audited && audited->is_audited_by(group_.rank) ? std::optional(audited->lane) : std::nullopt;
}

void AllReduce::broadcast_from(int root) {
  broadcast(comm_, replica_.parameters(), root);
  if (!reducer_.scatter) replica_.optimizer().restore(broadcast(comm_, replica_.optimizer().state(), root));
}

Optimizer::State AllReduce::gather_state() {
  prepare_once();
  Optimizer::State state;
  if (reducer_.scatter)
    state = tutti::gather_state(comm_, replica_.parameters(), replica_.optimizer());
  else if (comm_.rank() == 0)
    state = replica_.optimizer().state();
  mean_->gather_residuals(state);
  return state;
}

void AllReduce::restore(const Optimizer::State& state) {
  prepare_once();
  Optimizer::State own = state;
  mean_->restore_residuals(context_, own);
  take_state(broadcast(comm_, own, 0));
}

void AllReduce::make_rows(int64_t lanes) {
  std::vector<int> holders;
  if (facts_.survives) {
    // Ranks that share memory, or have the same /proc, are lost together with their host.
    holders = embedding::holders_of_copies(gather_all(comm_, host_identity(), "the hosts of the workers"));
  }
  rows_.emplace(replica_.tables(), comm_, context_.config().training.seed, lanes,
                replica_.optimizer().options(), std::move(holders));
  if (replica_.options().nan_guard) rows_->refuse_gradients_that_are_not_finite();
}

// Only the chief has read the rows.
void AllReduce::restore_rows(const Session::Start& start, embedding::RowParts parts) {
  const auto has_rows = comm::gather_all(comm_, int64_t{!start.rows.empty()}, "the rows of tables");
  if (has_rows[0] != 0) {
    rows_->restore(start.rows, start.changed_rows, parts);
  } else if (start.progress.restarts > 0 || context_.identity().is_evaluator) {
    fail(ErrorKind::InvalidArgument,
         "the checkpoint of step {} has no rows of sharded tables: it belongs to another model, or to one "
         "whose tables were small enough to be replicated",
         start.progress.step);
  }
  rows_->held().set_whole();
  sum_up_rows();
}

void AllReduce::take_rows(const Session::Start& start) {
  if (rows_) restore_rows(start, embedding::RowParts::WithAverage);
}

Snapshot AllReduce::rows() { return rows_->gather_weights(); }

void AllReduce::sum_up_rows() {
  if (!rows_) return;
  rows_checksum_ = rows_->checksum();
  row_counts_ = rows_->counts();
}

LaneSum& AllReduce::begin_step(int64_t step, const Wishes& wishes) {
  if (context_.identity().is_evaluator) context_.require_worker();  // throws
  if (joins())
    fail(ErrorKind::PeerLost,
         "this worker was started again, and joins the others only in fit() or in a Loop, which the program "
         "has not called");
  prepare_once();
  step_ = step;
  mean_->begin_step(step, wishes, replica_.optimizer().learning_rate());
  audited_ = audits_.at(step);
  if (audited_) mean_->audit(audited_->lane, audited_->is_audited_by(group_.rank), audited_->range);
  return *mean_;
}

// Compares the results of an audited lane before they are added to others.
bool AllReduce::passes_audit() {
  const SpanScope span(context_.timeline(), Activity::Reduce, "audit", step_);
  GradientMean::LaneHashes hashes = mean_->lane_hashes();
  const embedding::Tables& tables = replica_.tables();
  const LaneRange own = facts_.lanes;
  if (!hashes.own.empty())
    hashes.own += tables.hashes_of_lane(static_cast<size_t>(audited_->lane - own.begin));
  if (!hashes.copy.empty()) hashes.copy += tables.hashes_of_lane(static_cast<size_t>(own.size()));
  return audits_.agree(*audited_, step_, hashes);
}

// Compares a range of the sums before it changes a weight. Unless it passes, the sums are not used.
bool AllReduce::passes_audit_of_sum() {
  AuditedSum* const audited = mean_->audited_sum();
  if (audited == nullptr) return true;
  const SpanScope span(context_.timeline(), Activity::Reduce, "audit", step_);
  try {
    if (audits_.agree_on_sum(step_, audited->compute_again())) return true;
  } catch (...) {
    mean_->take_back();
    throw;
  }
  mean_->take_back();
  return false;
}

StepResult AllReduce::end_step() {
  audits_.evict_if_due();
  if (audited_ && !passes_audit()) {
    mean_->break_off();
    return {.step = step_, .made = false, .again = true};
  }
  const GradientMean::Result result = [&] {
    const SpanScope span(context_.timeline(), Activity::Reduce, "gradients", step_);
    return mean_->finish();
  }();
  if (!passes_audit_of_sum()) return {.step = step_, .made = false, .again = true};
  in_flight_ = InFlight{{step_ + 1, true, result.examples, result.loss_sum, result.wishes}};
  if (rows_) {
    const SpanScope span(context_.timeline(), Activity::Reduce, "gradients of rows", step_);
    rows_->receive(result.examples, step_);
    in_flight_->is_decided = true;
    if (result.examples > 0) rows_->begin_step(step_);
    if (result.examples > 0 && clip_norm_ > 0) row_squares_ = rows_->squares();
  }
  update(rows_ ? &rows_->held() : nullptr, mean_->audited_sum());
  in_flight_->is_made = true;
  if (rows_) rows_->show(step_);
  return std::exchange(in_flight_, std::nullopt)->result;
}

// The step is made. So a worker that is lost here is found in the next one.
void AllReduce::check_update(AuditedUpdate& again) {
  try {
    audits_.agree_on_update(step_, again);
  } catch (const Error& error) {
    if (!comm::is_loss(error)) throw;
  }
}

// Makes the step in flight, without other workers unless the optimiser's state is sharded, or the update is
// audited.
void AllReduce::update(embedding::HeldRows* rows, AuditedSum* audited) {
  if (in_flight_->result.examples == 0) {
    if (rows != nullptr) rows->skip_step();
    return;
  }
  double factor = 1;
  if (clip_norm_ > 0) factor = clip_factor(mean_->clip_norm(clip_norm_, row_squares_), clip_norm_);
  const SpanScope span(context_.timeline(), Activity::Compute, "update", in_flight_->result.step - 1);
  Optimizer& optimizer = replica_.optimizer();
  std::optional<AuditedUpdate> again;
  if (audited != nullptr && !optimizer.options().is_replicated())
    again.emplace(comm_, replica_.parameters(), optimizer, *audited, factor);
  if (shares_slots()) {
    if (!slots_) slots_.emplace(comm_, replica_.parameters(), optimizer);
    slots_->step(*mean_);
    kept_.reset();
  } else {
    optimizer.step();
    mean_->share_update();
  }
  if (again) check_update(*again);
  if (rows == nullptr) return;
  rows->update(factor, embedding::relative_rate(optimizer.learning_rate(), optimizer.options()),
               optimizer.steps());
}

void AllReduce::drop_unused_rows(int64_t step) {
  if (!rows_) return;
  rows_->held().evict(step);
  evicted_at_ = step;
}

void AllReduce::save(Session& session, const Progress& progress, const Snapshots& more) {
  const bool has_parts = nets_.size() == 1 && (reducer_.scatter || (rows_ && group_.world > 1));
  const std::string folder = has_parts ? shared_folder(session, progress.step) : "";
  std::vector<Optimizer::State> states;
  Snapshots all = gather_generators(comm_, more);
  Session::Tensors own;
  if (!folder.empty() && reducer_.scatter) {
    const Optimizer::State part = replica_.optimizer().state();
    own[store::kOptimizerPart] = tensors_of(replica_.parameters(), part.slots);
    states.emplace_back().steps = part.steps;
    mean_->gather_residuals(states.back());
  } else {
    for (AllReduce* net : nets_) states.push_back(net->gather_state());
  }
  std::optional<int64_t> base;
  if (rows_) {
    base = rows_base(session, progress.step);
    using Which = embedding::RowShard::Which;
    const auto rows = saved_rows(rows_->rows(), base ? Which::Changed : Which::All);
    all[store::kRowsPart].values = rows_->facts();
    if (folder.empty())
      all[store::kRowsPart].tensors = rows_->gather(rows);
    else
      own[store::kRowsPart] = rows;
  }
  if (!folder.empty()) session.write_parts(folder, own, progress.step);
  std::vector<store::SharedFile> files;
  writer_is_lost_ = std::make_shared<std::atomic<bool>>(false);
  for (const auto& [part, tensors] : own) {
    for (int rank = 0; rank < group_.world; ++rank)
      files.push_back({.part = part,
                       .name = store::shared_file_name(part, rank, group_.world),
                       .writer = fmt::format("worker {} of {}", rank, group_.world),
                       .is_lost = writer_is_lost_});
  }
  on_chief(context_, comm_, {.what = "the checkpoint", .step = progress.step},
           [&] { session.save(progress, states, all, files, base); });
  if (!rows_ || base) return;
  for (embedding::RowShard& shard : rows_->rows().shards()) shard.mark_saved();
}

// Returns the step of the checkpoint since which the changed rows are saved; nullopt if all rows are.
std::optional<int64_t> AllReduce::rows_base(const Session& session, int64_t step) {
  constexpr double kMost = 0.5;  // of the rows of any table on any worker
  int64_t vote = -1;
  if (!group_.is_chief() || session.rows_base(step)) vote = session.rows_base(step).value_or(0);
  for (const embedding::RowShard& shard : rows_->rows().shards())
    if (shard.changed_share() > kMost) vote = -1;
  const auto votes = comm::gather_all(comm_, vote, "the rows of tables");
  if (std::any_of(votes.begin(), votes.end(), [](int64_t each) { return each < 0; })) return std::nullopt;
  return votes[0];
}

// Returns the folder of the next checkpoint if all workers can write to it, else "".
std::string AllReduce::shared_folder(Session& session, int64_t step) {
  std::optional<store::FolderMark> mark;
  on_chief(context_, comm_, {.what = "the checkpoint", .step = step}, [&] {
    const std::string folder = session.open_folder();
    if (!folder.empty()) mark.emplace(folder);
  });
  const auto marks = gather_all(comm_, mark ? mark->path() : std::string(), "the folder of the checkpoint");
  const std::string folder = store::folder_of_mark(marks[0]);
  const auto all = gather_all(comm_, int64_t{!folder.empty()}, "the folder of the checkpoint");
  return std::all_of(all.begin(), all.end(), [](int64_t one) { return one != 0; }) ? folder : "";
}

// All workers wait until rank 0 has written all checkpoints.
void AllReduce::finish_saving(Session& session) {
  if (!session.folder().empty())
    on_chief(context_, comm_, {.what = "the checkpoint"}, [&] { session.finish_saving(); });
}

Json AllReduce::share(const std::string& what, const MakeValue& make) {
  return tutti::share(context_, comm_, what, make);
}

void AllReduce::fill(store::Report& report) const {
  report.strategy = facts_.name;
  if (mean_) report.reduce = mean_->name();
  report.audits = audits_.report();
  report.world = group_.world;
  if (rows_) add_rows(report, rows_checksum_, row_counts_);
}

// Workers may wait in the group of any net.
void AllReduce::abandon(const std::string& why) noexcept {
  for (const AllReduce* net : nets_) {
    net->comm_.abandon(why);
    if (net->module_group_) net->module_group_->abandon(why);
  }
}

}  // namespace tutti
