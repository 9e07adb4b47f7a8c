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

// The master of passive workers: strategy in-graph. It holds parameters and data, and does alone whatever is
// not computing gradients.
class Driving final : public Team {
 public:
  // The context outlives this.
  Driving(const Context& context, const Trainable& model, double clip_norm);

  // Those who compute.
  int world() const override { return workers_; }
  bool is_alone() const override { return false; }
  bool is_chief() const override { return true; }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same(const std::vector<std::string>&) override {}
  bool can_start_again() const override { return false; }
  void begin_fit(const Progress& progress) override;
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
  std::optional<Master> master_;  // once started
  int64_t merges_ = 0;            // of metrics
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last, so that it is written first
};

}  // namespace tutti
