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
// as the master does, and computes what that asks for.
class Driven final : public Team {
 public:
  // The context outlives this.
  explicit Driven(const Context& context);
  // Stays until the master has come to its end too.
  ~Driven() override;

  int world() const override { return place_ ? place_->workers : 1; }
  bool is_alone() const override { return false; }
  bool is_chief() const override { return false; }
  void place(ReplicaOptions&) override {}
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same(const std::vector<std::string>&) override {}
  bool can_start_again() const override { return true; }
  void begin_fit(const Progress&) override {}
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
  std::optional<passive::Place> place_;  // once started
  std::optional<passive::LaneServer> server_;
  int64_t merges_ = 0;                                 // of metrics
  bool finished_ = false;                              // a fit at least, and nothing was begun after it
  const int exceptions_ = std::uncaught_exceptions();  // when this was made
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last, so that it is written first
};

}  // namespace tutti
