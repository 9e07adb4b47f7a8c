#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/params/lane_vectors.h"
#include "tutti/ps/client.h"
#include "tutti/train/team.h"

namespace tutti {

// Workers that communicate only through the parameter servers: the strategies ps-async and ps-sync. Workers
// may join and leave at any time; the chief begins the run, writes the checkpoints, and ends the job.
class ByServers final : public Team {
 public:
  // The context must outlive this.
  ByServers(const Context& context, double clip_norm);
  ~ByServers() override;

  int world() const override { return context_.world(); }
  bool is_chief() const override { return context_.is_chief(); }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same_fit(const MakePlan& make) override;
  bool can_start_again() const override { return true; }
  bool keeps_parameters_elsewhere() const override { return true; }
  void set_progress(const Progress& progress) override;
  void save(Session& session, Replica& replica, const Progress& progress) override;
  void finish_fit(Strategy& strategy, Progress& progress) override;
  Share share_of_evaluation() const override { return is_chief() ? Share{0, 1} : Share{-1, 1}; }
  void merge(metrics::Metric& metric) override;
  bool needs_data_in_every_lane() const override { return false; }
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string& why) noexcept override;

 private:
  Start try_to_start(Session& session, Replica& replica, const std::vector<std::string>& plan);
  // Connects and runs the body; repeats this if a server is lost in the meantime.
  template <class Body>
  auto until_nobody_is_lost(Body body);
  void make_client(Replica& replica);
  void make_vectors(Replica& replica, int64_t lanes);
  int64_t begin(Session& session, Replica& replica, const std::vector<std::string>& plan);
  std::unique_ptr<Strategy> make_strategy(Replica& replica, int64_t lanes);
  bool is_in_step() const { return strategy_ == "ps-sync" && context_.flags().backup == 0; }
  void say_stopped();
  void say_placement(const Replica& replica) const;

  const Context& context_;
  const std::string strategy_;
  const double clip_norm_;
  const std::shared_ptr<rpc::Arena> arena_;
  std::optional<LaneVectors> vectors_;
  std::unique_ptr<ps::Client> client_;
  ps::Client::Standing standing_;  // at the end of the last fit
  bool begun_ = false;             // this task has taken part in the run
  bool finished_ = false;          // at least one fit has been completed
  int64_t lanes_ = 1;
  int64_t merges_ = 0;  // the number of metrics merged
  // On the chief: the metrics that it has sent, for servers that have lost them.
  std::map<std::string, std::vector<double>> counted_;
  bool at_work_ = false;  // between start() and the end of a fit
  // Each worker has its own timeline.
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
