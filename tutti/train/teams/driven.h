#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/train/passive/lane_server.h"
#include "tutti/train/passive/line.h"
#include "tutti/train/team.h"

namespace tutti {

// A passive worker that is a process of the same program as its master (Driving): it goes through the program
// like the master, and computes what the master requests.
class Driven final : public Team {
 public:
  // The context must outlive this.
  explicit Driven(const Context& context);
  // Waits until the master has ended too, if this worker has completed a fit.
  ~Driven() override;

  int world() const override { return place_ ? place_->workers : 1; }
  bool is_alone() const override { return false; }
  bool is_chief() const override { return false; }
  void place(ReplicaOptions&) override {}
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  // Only the master has data.
  void require_same_fit(const MakePlan&) override {}
  bool can_start_again() const override { return true; }
  void set_progress(const Progress&) override {}
  void save(Session&, Replica&, const Progress&) override {}
  void finish_fit(Strategy& strategy, Progress& progress) override;
  Share share_of_evaluation() const override { return {-1, 1}; }
  void merge(metrics::Metric& metric) override;
  bool needs_data_in_every_lane() const override { return false; }
  void fill(store::Report&) const override {}
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string&) noexcept override {}

 private:
  const Context& context_;
  passive::Line line_;
  std::optional<passive::Place> place_;  // set by start(), like server_
  std::optional<passive::LaneServer> server_;
  bool finished_ = false;                              // at least one fit has been completed
  const int exceptions_ = std::uncaught_exceptions();  // at construction
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
