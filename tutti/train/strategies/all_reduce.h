#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/group.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/embedding/connected_rows.h"
#include "tutti/embedding/former_rows.h"
#include "tutti/step/audited_range.h"
#include "tutti/step/gradient_mean.h"
#include "tutti/step/shared_slots.h"
#include "tutti/train/data_parallel.h"
#include "tutti/train/replica.h"
#include "tutti/train/strategies/audits.h"

namespace tutti {

// Every worker computes its lanes, one after the other, sums the results together with all other workers, and
// makes the same update: the strategy "allreduce", or "single" if there is one worker. In an evaluator, which
// makes no steps, it has a model, and loads weights into it.
class AllReduce final : public DataParallel {
 public:
  // The context must outlive this. The group has to be connected. If the options have a number of lanes,
  // steps can be made before start(). Throws InvalidArgument on all workers if their plans differ, unless
  // workers may change, which compare them in start().
  AllReduce(const Context& context, Group group, const Trainable& model, const OptimizerOptions& optimizer,
            const ReplicaOptions& replica, const StrategyOptions& options);

  const Group& group() const override { return group_; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }
  Start start(Session& session, const std::vector<std::string>& plan) override;
  void regroup(const std::optional<Error>& why) override;
  bool has_run() override;
  std::optional<StepResult> complete_step(int64_t step) override;
  std::optional<Standing> go_on(Session& session, const std::vector<std::string>& plan,
                                const Standing* mine) override;
  bool joins() const override;
  LaneSum& begin_step(int64_t step, const Wishes& wishes) override;
  StepResult end_step() override;
  int64_t updates() const override { return replica_.optimizer().steps(); }
  std::optional<int64_t> lane_to_audit(int64_t step) const override;
  Snapshot rows() override;
  void take_rows(const Session::Start& start) override;
  void finish(Progress& /*progress*/) override { sum_up_rows(); }
  void drop_unused_rows(int64_t step) override;
  void save(Session& session, const Progress& progress, const Snapshots& more) override;
  void finish_saving(Session& session) override;
  Json share(const std::string& what, const MakeValue& make) override;
  void require_same(const std::vector<std::string>& plan) override;
  void require_same_weights(int64_t step, const std::string& sha256) override;
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string& why) noexcept override;

  // Sets the other nets that are trained together with this one, by steps of their own. Their state is
  // started and saved with the state of this one.
  void set_other_nets(const std::vector<AllReduce*>& others);
  // See DistributedOptimizer.
  void broadcast_from(int root);
  Optimizer::State gather_state();
  void restore(const Optimizer::State& state);

 private:
  void prepare(int64_t lanes);
  void prepare_once();
  bool may_change() const;
  StrategyFacts facts_with(int64_t lanes) const;
  void require_same_tasks(const std::vector<std::string>& plan);
  std::string why_not_survive(int64_t lanes) const;
  bool can_go_back(int64_t lanes) const;

  struct StepsOfWorkers {
    int64_t last = -1;     // that any worker has made, or knows to be decided
    bool is_made = false;  // by any
    double squares = 0;    // of the one that has made the last step
    int64_t evicted = -1;  // the last step after which any worker has evicted rows
  };
  StepsOfWorkers tell_steps(int64_t step);
  void make_rows(int64_t lanes);
  void take_over_rows(int64_t lanes);

  bool shares_slots() const;
  bool will_be_cut() const;
  void cut_state();
  Optimizer::State whole_state() const;
  void take_state(const Optimizer::State& state);
  ReducerOptions reducer_of(const OptimizerOptions& optimizer) const;
  ReplicaOptions placed(ReplicaOptions options, const std::vector<std::string>& further_plan);
  std::string shared_folder(Session& session, int64_t step);
  void restore_rows(const Session::Start& start, embedding::RowParts parts);
  void sum_up_rows();
  std::optional<int64_t> rows_base(const Session& session, int64_t step);
  void update(embedding::HeldRows* rows, AuditedSum* audited = nullptr);
  void prepare_audits(int64_t lanes, const std::string& kept);
  bool passes_audit();
  bool passes_audit_of_sum();
  void check_update(AuditedUpdate& again);

  const Context& context_;
  Group group_;
  comm::Communicator& comm_;  // of the group
  const double clip_norm_;
  const std::optional<ReducerOptions> asked_;  // by the program
  const bool has_tables_;                      // sharded ones
  const int64_t lanes_before_start_;           // a checkpoint may have others
  std::vector<std::string> plan_ = {};         // of the replica
  // Of the present workers. With `scatter`, each keeps and updates its own part of the optimiser's state.
  ReducerOptions reducer_;
  bool is_cut_ = reducer_.scatter;  // the optimiser has only a part
  Replica replica_;
  std::vector<AllReduce*> nets_ = {this};  // with the others
  StrategyFacts facts_;
  int64_t step_ = 0;
  Audits audits_;
  std::optional<AuditedLane> audited_;  // in the present step
  // Set when a worker is lost that may have had to write a part of the last checkpoint.
  std::shared_ptr<std::atomic<bool>> writer_is_lost_ = std::make_shared<std::atomic<bool>>(false);
  // A worker was lost while this one took over the state of another: what it has is the state of no step.
  bool half_taken_over_ = false;
  std::optional<GradientMean> mean_;  // once prepared, like all below
  std::optional<SharedSlots> slots_;  // since the first step of the present workers
  // All of the optimiser's state if shares_slots(), until the first step of the present workers is made.
  std::optional<Optimizer::State> kept_;
  std::shared_ptr<comm::Communicator> module_group_;  // null if no module needs one
  std::optional<embedding::ConnectedRows> rows_;      // of sharded tables, once started
  embedding::FormerRows former_rows_;                 // while the workers change
  bool has_former_rows_ = false;                      // all of them, on all workers together
  // A step whose gradients are summed, until end_step() has returned or, if a worker was lost meanwhile,
  // complete_step() has decided about it.
  struct InFlight {
    StepResult result;
    bool is_decided = false;  // all workers have received all that they need for it
    bool is_made = false;
  };
  std::optional<InFlight> in_flight_;
  double row_squares_ = 0;     // of the gradients of all rows in the last step, if they are clipped
  int64_t evicted_at_ = -1;    // the last step after which rows were evicted
  std::string rows_checksum_;  // after the last fit, like the counts
  std::map<std::string, embedding::GrowthCounts> row_counts_;
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
