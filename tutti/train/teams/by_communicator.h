#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/params/gradient_mean.h"
#include "tutti/train/team.h"
#include "tutti/train/together.h"

namespace tutti {

// Workers that are connected to each other, or a single one: the strategies allreduce and single.
class ByCommunicator final : public Team {
 public:
  // The context must outlive this.
  ByCommunicator(const Context& context, std::shared_ptr<comm::Communicator> comm, double clip_norm);

  int world() const override { return comm_->world(); }
  bool is_chief() const override { return comm_->rank() == 0; }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same_fit(const MakePlan& make) override;
  bool can_start_again() const override { return false; }
  void set_progress(const Progress&) override {}
  void save(Session& session, Replica& replica, const Progress& progress) override;
  void finish_fit(Strategy&, Progress&) override {}
  Share share_of_evaluation() const override { return {comm_->rank(), comm_->world()}; }
  void merge(metrics::Metric& metric) override { tutti::merge(*comm_, metric); }
  bool needs_data_in_every_lane() const override { return module_group_ != nullptr; }
  void fill(store::Report&) const override {}
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string& why) noexcept override;

 private:
  void require_same(const std::vector<std::string>& plan);
  bool is_to_be_sharded(torch::Device device) const;

  const Context& context_;
  const std::shared_ptr<comm::Communicator> comm_;
  const double clip_norm_;
  GradientMean* mean_ = nullptr;                      // of the strategy, once started
  bool sharded_ = false;                              // each worker keeps and updates its own part
  std::shared_ptr<comm::Communicator> module_group_;  // set by start(), if a module needs one
  comm::TimelineFile timeline_file_;                  // last member, so that it is written first
};

}  // namespace tutti
