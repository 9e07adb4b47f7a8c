#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/train/passive/master.h"
#include "tutti/train/team.h"

namespace tutti {

// The master of passive workers: the strategy in-graph. It holds parameters and data, and does everything
// itself except computing gradients.
class Driving final : public Team {
 public:
  // The context must outlive this.
  Driving(const Context& context, const Trainable& model, double clip_norm);

  // The number of passive workers, which compute the gradients.
  int world() const override { return workers_; }
  bool is_alone() const override { return false; }
  bool is_chief() const override { return true; }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  // Only the master has data.
  void require_same_fit(const MakePlan&) override {}
  bool can_start_again() const override { return false; }
  void set_progress(const Progress& progress) override;
  void save(Session& session, Replica& replica, const Progress& progress) override;
  void finish_fit(Strategy& strategy, Progress& progress) override;
  Share share_of_evaluation() const override { return {0, 1}; }
  void merge(metrics::Metric& metric) override;
  bool needs_data_in_every_lane() const override { return false; }
  void fill(store::Report&) const override {}
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string&) noexcept override {}

 private:
  const Context& context_;
  const Trainable model_;
  const double clip_norm_;
  const int workers_;
  const std::shared_ptr<rpc::Arena> arena_;
  std::optional<Master> master_;  // set by start()
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
