#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/train/team.h"
#include "tutti/train/together.h"

namespace tutti {

// Workers that talk to each other, or one alone: strategies allreduce and single.
class ByCommunicator final : public Team {
 public:
  // The context outlives this.
  ByCommunicator(const Context& context, std::shared_ptr<comm::Communicator> comm, double clip_norm);

  int world() const override { return comm_->world(); }
  bool is_chief() const override { return comm_->rank() == 0; }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same(const std::vector<std::string>& plan) override;
  bool can_start_again() const override { return false; }
  void begin_fit(const Progress&) override {}
  void save(Session& session, Replica& replica, const Progress& progress) override;
  void finish_fit(Strategy&, Progress&) override {}
  Share share_of_evaluation() const override { return {comm_->rank(), comm_->world()}; }
  void merge(metrics::Metric& metric) override { tutti::merge(*comm_, metric); }
  bool needs_data_in_every_lane() const override { return module_group_ != nullptr; }
  void fill(store::Report&) const override {}
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string& why) noexcept override;

 private:
  bool is_to_be_sharded(torch::Device device) const;

  const Context& context_;
  const std::shared_ptr<comm::Communicator> comm_;
  const double clip_norm_;
  bool sharded_ = false;                              // each worker keeps and updates its own part
  std::shared_ptr<comm::Communicator> module_group_;  // once started, where some module wants one
  comm::TimelineFile timeline_file_;                  // last, so that it is written first
};

}  // namespace tutti
