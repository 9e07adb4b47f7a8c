#include <algorithm>
#include <cstdint>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/comm/gather_all.h"
#include "tutti/params/optimizer_state.h"
#include "tutti/params/plan.h"
#include "tutti/train/strategies/all_reduce.h"
#include "tutti/train/strategies/connected.h"

// The part of AllReduce in which its workers change while they train: some are lost, others come.
namespace tutti {

bool AllReduce::joins() const { return comm_.epochs() != nullptr && comm_.epochs()->is_joining(); }

// Returns true if the others have the slots of a worker that is lost.
bool AllReduce::shares_slots() const {
  return reducer_.scatter && !has_tables_ && comm_.epochs() != nullptr &&
         shared_by(comm_, replica_.parameters().device()) != nullptr;
}

// Whatever the former workers have made together ends here. What they shared, their parameters and slots,
// stays in memory as long as this worker uses it, also the parts of those that are gone.
void AllReduce::regroup(const std::optional<Error>& why) {
  if (comm_.epochs() == nullptr) return;
  if (why) *writer_is_lost_ = true;
  if (mean_) mean_->break_off();
  if (slots_) {
    kept_ = slots_->state();
    half_taken_over_ = half_taken_over_ || slots_->is_left_behind();
    slots_.reset();
  }
  if (!has_tables_) in_flight_.reset();
  if (!in_flight_ || !facts_.survives) mean_.reset();  // else complete_step() may need the gradients
  if (rows_ && rows_->held().is_whole() && facts_.survives)
    former_rows_.keep(comm_.epochs()->number(), rows_->release());
  rows_.reset();
  module_group_.reset();
  comm_.reconfigure(why);
  group_.refresh();
  context_.set_chief(group_.is_chief());
  const bool had_all = !reducer_.scatter;
  reducer_ = reducer_of(replica_.optimizer().options());
  if (had_all && !kept_ && shares_slots()) kept_ = replica_.optimizer().state();
}

// Gives the optimiser its part of the state among the present workers.
void AllReduce::cut_state() {
  const bool has_part = reducer_.scatter || is_cut_;
  if (has_part && group_.epoch > 0)
    replica_.optimizer().set_sections(sections_of(replica_.parameters(), reducer_.scatter ? group_.rank : 0,
                                                  reducer_.scatter ? group_.world : 1));
  is_cut_ = reducer_.scatter;
  if (kept_) replica_.optimizer().restore(*kept_);
  if (!shares_slots()) kept_.reset();
}

// Returns all of the optimiser's state, if this worker has it.
Optimizer::State AllReduce::whole_state() const { return kept_ ? *kept_ : replica_.optimizer().state(); }

void AllReduce::take_state(const Optimizer::State& state) {
  slots_.reset();
  if (shares_slots()) kept_ = state;
  replica_.optimizer().restore(state);
}

// Returns true if this worker, which is alone, will have a part of the optimiser's state once others join,
// and cannot share it with them.
bool AllReduce::will_be_cut() const {
  const RunConfig& config = context_.config();
  const std::string& backend = config.network.backend;
  const bool has_memory = !has_tables_ && (backend == "auto" || backend.starts_with("shm"));
  return group_.world == 1 && comm_.epochs() != nullptr && !asked_ &&
         config.reduction.optimizer_state == "sharded" && !has_memory;
}

// Returns true if no worker had a part of the state that the others do not have, and none will. In another
// world the same flags may have another effect.
bool AllReduce::has_run() {
  const bool has_all = facts_.survives && why_not_survive(lanes_before_start_).empty();
  const auto all = comm::gather_all(comm_, int64_t{has_all}, "whether each worker has all of the state");
  return std::find(all.begin(), all.end(), 0) == all.end();
}

// Returns why a lost worker takes with it what the others need; "" if they have all of it.
std::string AllReduce::why_not_survive(int64_t lanes) const {
  if (has_tables_ && context_.config().reduction.replicas == 0)
    return "each worker has rows of sharded tables, without copies (--replicas 0)";
  if ((reducer_.scatter && !shares_slots()) || will_be_cut())
    return "each worker has a part of the optimiser's state (--optimizer-state sharded)";
  if (!replica_.parameters().communicator_users().empty()) return "SyncBatchNorm needs the same workers";
  if (reducer_.wire.type != torch::ScalarType::Undefined)
    return "each worker has residuals of --wire-precision";
  return lanes == 1 ? "there is only one lane" : "";
}

// Returns true if the workers that are left can go back to the newest checkpoint together.
bool AllReduce::can_go_back(int64_t lanes) const {
  return lanes > 1 && replica_.parameters().communicator_users().empty() &&
         !context_.config().checkpoints.logdir.empty();
}

// A worker makes a step of a model with sharded tables only when it is decided: when all have received what
// they need to make it without the others (ConnectedRows::receive). So if one has made it, or knows that it
// is decided, all make it; else nobody has, and all forget it.
std::optional<StepResult> AllReduce::complete_step(int64_t step) {
  if (!has_tables_) return {};
  has_former_rows_ = former_rows_.find(comm_);
  const StepsOfWorkers all = tell_steps(step);
  const bool is_made = in_flight_ && in_flight_->is_made;
  const bool completes = step >= 0 && step < all.last && !is_made;
  const bool makes_squares = clip_norm_ > 0 && !all.is_made;
  embedding::HeldRows* const rows = former_rows_.mine();
  if (completes) {
    const bool can = rows != nullptr && in_flight_ && rows->has_received() && step + 1 == all.last;
    TUTTI_CHECK(can, "step {} is decided, but this worker, at step {}, does not have it", all.last, step);
    const int64_t examples = in_flight_->result.examples;
    if (!std::exchange(in_flight_->is_decided, true) && examples > 0) rows->begin_step(step);
  }
  if (rows != nullptr) rows->resume_adopted(all.last);
  row_squares_ = all.squares;
  if (makes_squares) {
    const auto own = completes ? rows->squares(former_rows_.given()) : metrics::ExactSum();
    row_squares_ = embedding::sum_of_all(comm_, own).value();
  }
  if (completes) update(rows);
  if (rows != nullptr && !completes) rows->complete_adopted(all.last);
  if (rows != nullptr && all.evicted == all.last) {
    rows->evict(all.last);  // changes nothing more where they are evicted already
    evicted_at_ = all.last;
  }
  const bool is_dropped = in_flight_ && !is_made && !completes;
  if (is_dropped && in_flight_->result.examples > 0) mean_->take_back();
  mean_.reset();
  const auto made = std::exchange(in_flight_, std::nullopt);
  return made && !is_dropped ? std::optional(made->result) : std::nullopt;
}

// What the workers of the former epoch have made.
AllReduce::StepsOfWorkers AllReduce::tell_steps(int64_t step) {
  enum Told { kMade, kDecided, kEvicted, kSquares, kTold };
  const torch::Tensor told = torch::empty({kTold}, torch::kDouble);
  told[kMade] = in_flight_ && in_flight_->is_made ? step + 1 : step;
  told[kDecided] = in_flight_ && in_flight_->is_decided ? step + 1 : step;
  told[kEvicted] = evicted_at_;
  told[kSquares] = row_squares_;
  StepsOfWorkers all;
  int64_t made = -1;
  for (const torch::Tensor& theirs : comm::gather_all(comm_, told, "the step of each worker")) {
    const auto* number = static_cast<const double*>(theirs.data_ptr());
    const auto whole = [&](Told which) { return static_cast<int64_t>(number[which]); };
    if (whole(kMade) > made) all.squares = number[kSquares];
    made = std::max(made, whole(kMade));
    all.last = std::max({all.last, made, whole(kDecided)});
    all.evicted = std::max(all.evicted, whole(kEvicted));
  }
  all.is_made = made == all.last;
  return all;
}

// Usually all workers are as far, and nothing has to be sent.
std::optional<Strategy::Standing> AllReduce::go_on(Session& session, const std::vector<std::string>& plan,
                                                   const Standing* mine) {
  require_same(plan);
  audits_.may_repeat_steps();
  if (has_tables_ && !has_former_rows_) return Standing{.has_begun = false};
  Together together = come_together(comm_, session, half_taken_over_ ? nullptr : mine);
  if (!together.has_begun) return Standing{.has_begun = false};
  prepare(session.lanes());
  if (!together.all_are_there) {
    half_taken_over_ = together.standing.has_value();
    broadcast(comm_, replica_.parameters(), together.leader);
    take_state(broadcast(comm_, group_.rank == together.leader ? whole_state() : Optimizer::State(),
                         together.leader));
    half_taken_over_ = false;
  }
  take_over_rows(session.lanes());
  return std::move(together.standing);
}

// The rows move from their former owners, or the holders of copies, to the new ones.
void AllReduce::take_over_rows(int64_t lanes) {
  if (!has_tables_) return;
  make_rows(lanes);
  former_rows_.hand_over(comm_, rows_->held());
  comm_.barrier({.what = "the rows of tables"}).wait();
  former_rows_.drop();
}

}  // namespace tutti
