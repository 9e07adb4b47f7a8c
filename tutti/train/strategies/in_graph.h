#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/train/passive/master.h"
#include "tutti/train/passive/worker.h"
#include "tutti/train/strategy.h"

// The strategy "in-graph": a master holds parameters and data, and passive workers compute the gradients. The
// result has the same bits as that of a single worker.
namespace tutti {

// Takes the batches of all lanes, lets its passive workers compute losses and gradients, and makes the update
// itself.
class InGraphMaster final : public Strategy {
 public:
  // The context must outlive this.
  InGraphMaster(const Context& context, const Trainable& model, const OptimizerOptions& optimizer,
                const ReplicaOptions& replica, double clip_norm);

  // The world is the number of passive workers.
  const Group& group() const override { return group_; }
  bool is_alone() const override { return false; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }
  Start start(Session& session, const std::vector<std::string>& plan) override;
  void set_progress(const Progress& progress) override;
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void save(Session& session, const Progress& progress, const Snapshots& more) override;
  void finish(Progress& progress) override;
  Json share(const std::string& what, const MakeValue& make) override;
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }

 private:
  const Context& context_;
  const Trainable model_;
  const double clip_norm_;
  const Group group_;
  const std::shared_ptr<rpc::Arena> arena_;
  Replica replica_;
  StrategyFacts facts_;
  std::optional<Master> master_;      // once started
  Wishes wishes_;                     // of all tasks, in the last step
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

// A passive worker that is a process of the same program as its master: it goes through the program like the
// master, and computes what the master requests.
class InGraphWorker final : public Strategy {
 public:
  // The context must outlive this.
  InGraphWorker(const Context& context, const Trainable& model, const OptimizerOptions& optimizer,
                const ReplicaOptions& replica);
  // Waits until the master has ended too, if this worker has completed a fit.
  ~InGraphWorker() override;

  const Group& group() const override { return group_; }
  bool is_alone() const override { return false; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }
  Start start(Session& session, const std::vector<std::string>& plan) override;
  // The batches come from the master, so this worker reads none.
  StepRange begin_steps(int64_t step, int64_t, int64_t) override { return {step, step}; }
  // Answers the master's requests until the master has made the step.
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void save(Session&, const Progress&, const Snapshots&) override {}
  void finish(Progress& progress) override;
  Json share(const std::string& what, const MakeValue& make) override;
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }

 private:
  const Context& context_;
  const Group group_;
  Replica replica_;
  StrategyFacts facts_;
  passive::MasterConnection connection_;
  std::optional<passive::LaneServer> server_;          // once started
  bool finished_ = false;                              // at least one fit has been completed
  const int exceptions_ = std::uncaught_exceptions();  // at construction
  comm::TimelineFile timeline_file_;                   // last member, so that it is written first
};

}  // namespace tutti
