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

// Workers that know nothing of each other but what the parameter servers tell them: strategies ps-async and
// ps-sync. Each comes and goes as it likes; the chief begins, writes the checkpoints, and ends the job.
class ByServers final : public Team {
 public:
  // The context outlives this.
  ByServers(const Context& context, double clip_norm);
  ~ByServers() override;

  int world() const override { return context_.world(); }
  bool is_chief() const override { return context_.is_chief(); }
  void place(ReplicaOptions& options) override;
  Start start(Session& session, Replica& replica, const std::vector<std::string>& plan) override;
  void require_same(const std::vector<std::string>&) override {}
  bool can_start_again() const override { return true; }
  void begin_fit(const Progress& progress) override;
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
  // Connects, and does it; once more where a server is lost meanwhile.
  template <class Body>
  auto until_nobody_is_lost(Body body);
  void make_client(Replica& replica);
  void make_vectors(Replica& replica, int64_t lanes);
  int64_t begin(Session& session, Replica& replica, const std::vector<std::string>& plan);
  std::unique_ptr<Strategy> make_strategy(Replica& replica, int64_t lanes);
  void say_placement(const Replica& replica) const;

  const Context& context_;
  const std::string strategy_;
  const double clip_norm_;
  const std::shared_ptr<rpc::Arena> arena_;
  std::optional<LaneVectors> vectors_;
  std::unique_ptr<ps::Client> client_;
  ps::Client::Standing standing_;  // at the end of the last fit
  bool begun_ = false;             // it has been in the run
  bool finished_ = false;          // a fit at least
  int64_t lanes_ = 1;
  int64_t merges_ = 0;  // of metrics
  // The chief: what it has told of metrics, for servers that know it no more.
  std::map<std::string, std::vector<double>> counted_;
  bool at_work_ = false;  // between start and the end of a fit
  // Each worker has a timeline of its own.
  const std::unique_ptr<comm::Communicator> alone_;
  comm::TimelineFile timeline_file_;  // last, so that it is written first
};

}  // namespace tutti
