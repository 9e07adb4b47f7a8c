#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/group.h"
#include "tutti/embedding/connected_rows.h"
#include "tutti/train/lane_strategy.h"

namespace tutti {

// The way of an evaluator, which makes no steps: it has a model, and loads weights into it.
class EvaluationOnly final : public LaneStrategy {
 public:
  // The group has this task alone.
  EvaluationOnly(const Context& context, Group group, const Trainable& model,
                 const OptimizerOptions& optimizer, const ReplicaOptions& replica)
      : context_(context), group_(std::move(group)), replica_(model, optimizer, replica) {}

  const Group& group() const override { return group_; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }

  // Leaves the weights as they are.
  Start start(Session& session, const std::vector<std::string>& plan) override;
  void require_same_fit(const MakePlan& /*make*/) override {}
  LaneSum& begin_step(int64_t step, const Wishes& wishes) override;
  StepResult end_step() override { return {}; }
  int64_t updates() const override { return 0; }
  void save(Session& /*session*/, const Progress& /*progress*/, const Snapshots& /*more*/) override {}
  // Requires start(). Throws InvalidArgument if the model has tables of which the checkpoint has no rows.
  void take_rows(const Session::Start& start) override;
  Snapshot rows() override;
  Json from_chief(const std::string& /*what*/, const std::function<Json()>& make) override { return make(); }
  void merge(const metrics::List& /*list*/) override {}
  void fill(store::Report& report) const override;
  void write_timeline() override {}

 private:
  const Context& context_;
  const Group group_;
  Replica replica_;
  std::optional<embedding::ConnectedRows> rows_;  // of sharded tables, all of them; once started
  const StrategyFacts facts_ = {.name = "evaluator", .lanes = {0, 0}};
};

}  // namespace tutti
