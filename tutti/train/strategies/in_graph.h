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

namespace tutti {

// The strategy "in-graph": a master holds parameters and data, and passive workers compute the gradients. The
// result has the same bits as with a single worker. The chief is the master: it takes the batches of all
// lanes, lets the workers compute losses and gradients, and makes the update itself. Every other task goes
// through the program like the master, and serves the master's requests where the master makes steps, shares
// a value or ends a fit.
class InGraph final : public Strategy {
 public:
  // The context must outlive this.
  InGraph(const Context& context, const Trainable& model, const OptimizerOptions& optimizer,
          const ReplicaOptions& replica, double clip_norm);
  // A worker that has completed a fit waits until the master has ended too.
  ~InGraph() override;

  // The world is the number of passive workers.
  const Group& group() const override { return group_; }
  bool is_alone() const override { return false; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }
  Start start(Session& session, const std::vector<std::string>& plan) override;
  // The progress is for a worker that comes back.
  void set_progress(const Progress& progress) override;
  // A worker reads no batches, since they come from the master.
  StepRange begin_steps(int64_t step, int64_t end, int64_t) override { return {step, worker_ ? step : end}; }
  // A worker answers requests until the master has made a step.
  StepResult step(int64_t step, const Wishes& wishes, data::BatchQueue& queue,
                  const LaneObserver& observe) override;
  void save(Session& session, const Progress& progress, const Snapshots& more) override;
  void finish(Progress& progress) override;
  Json share(const std::string& what, const MakeValue& make) override;
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }

 private:
  Start follow(Session& session, const std::vector<std::string>& plan);
  std::optional<int64_t> serve(const Wishes& wishes);

  const Context& context_;
  const Trainable model_;
  const double clip_norm_;
  const Group group_;
  const std::shared_ptr<rpc::Arena> arena_;
  Replica replica_;
  StrategyFacts facts_;
  std::optional<Master> master_;  // of the chief, once started
  Wishes wishes_;                 // of all tasks, in the last step

  // Of every other task.
  std::optional<passive::Worker> worker_;
  std::optional<Progress> end_;                        // as the master says when it ends a fit
  bool finished_ = false;                              // at least one fit has been completed
  const int exceptions_ = std::uncaught_exceptions();  // at construction

  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
