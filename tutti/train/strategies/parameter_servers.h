#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/ps/client.h"
#include "tutti/step/lane_sum.h"
#include "tutti/train/data_parallel.h"
#include "tutti/train/strategies/server_steps.h"

namespace tutti {

// Workers that communicate only through the parameter servers: the strategies "ps-async" and "ps-sync", which
// differ in the way they make a step (ServerSteps). Workers may join and leave at any time; the chief begins
// the run, writes the checkpoints, and ends the job.
//
// If the workers change (`tutti run --min`), they are connected: for the list of the members, and for all
// that they tell each other besides the steps. Each epoch has its own place in the run on the servers.
class ParameterServers final : public DataParallel {
 public:
  // The workers of the group need no communicator, unless they change. The context must outlive this.
  ParameterServers(const Context& context, Group group, const Trainable& model,
                   const OptimizerOptions& optimizer, const ReplicaOptions& replica,
                   const StrategyOptions& options);
  ~ParameterServers() override;

  const Group& group() const override { return group_; }
  Replica& replica() override { return replica_; }
  const StrategyFacts& facts() const override { return facts_; }
  Start start(Session& session, const std::vector<std::string>& plan) override;
  void regroup(const std::optional<Error>& why) override;
  bool has_run() override;
  std::optional<Standing> go_on(Session& session, const std::vector<std::string>& plan,
                                const Standing* mine) override;
  bool joins() const override;
  void set_progress(const Progress& progress) override;
  LaneSum& begin_step(int64_t step, const Wishes& wishes) override;
  StepResult end_step() override {
    const StepResult result = steps_->end_step();
    last_step_ = result.step;
    return result;
  }
  int64_t updates() const override { return last_step_; }
  void settle() override { steps_->settle(); }
  Snapshot rows() override;
  void save(Session& session, const Progress& progress, const Snapshots& more) override;
  void finish_saving(Session& session) override;
  void finish(Progress& progress) override;
  Json share(const std::string& what, const MakeValue& make) override;
  void require_same(const std::vector<std::string>& plan) override;
  void fill(store::Report& report) const override;
  void write_timeline() override { timeline_file_.write(); }
  void abandon(const std::string& why) noexcept override;

 private:
  StepRange steps_of_feed(int64_t step, int64_t end, int64_t feed_begin) override {
    return steps_->steps_of_feed(step, end, feed_begin);
  }
  // Returns null if the workers never change.
  comm::Communicator* connected() const { return group_.communicator.get(); }
  Start try_to_start(Session& session, const std::vector<std::string>& plan);
  std::vector<std::string> whole_plan(const std::vector<std::string>& plan) const;
  // Connects and runs the body; repeats this if a server is lost in the meantime.
  template <class Body>
  auto until_nobody_is_lost(Body body);
  void make_client();
  void make_vectors(int64_t lanes);
  int64_t begin(Session& session, const std::vector<std::string>& plan);
  void begin_connected(Session& session, const std::vector<std::string>& plan);
  int64_t begin_from(Session& session, const Session::Start& found, const std::vector<std::string>& plan);
  void save_state(Session& session, const Progress& progress, const Snapshots& more);
  bool takes_part(Session& session, int64_t step);
  void know_lanes(int64_t lanes);
  void know_part_of_evaluations();
  void make_steps(int64_t lanes);
  // The keys of the chief's notes: a checkpoint was taken, and those of this many fits are written.
  static std::string save_key(int64_t step);
  static std::string saved_key(int64_t fits);
  void mark_lost_writers();
  void await_writers(const Session& session);
  std::vector<store::SharedFile> write_on_servers(const std::string& mark,
                                                  const ps::Client::Snapshot& snapshot);
  ps::RowsToBegin rows_to_begin(const Session::Start& found) const;
  void sum_up_rows();
  void say_stopped();
  void await_fit(const Progress& progress, int64_t fits);
  void say_placement() const;

  const Context& context_;
  Group group_;
  const double clip_norm_;
  const std::shared_ptr<rpc::Arena> arena_;
  StrategyFacts facts_;
  Replica replica_;
  std::optional<LaneVectors> vectors_;
  std::unique_ptr<ps::Client> client_;
  std::unique_ptr<ps::ServerRows> rows_;         // of sharded tables, through the client
  std::vector<embedding::RowChunk> rows_alone_;  // of tables that were filled before the training
  std::unique_ptr<ServerSteps> steps_;           // once started
  // On the chief: what the report says of the tables.
  std::optional<ps::Client::RowsSummary> rows_summary_;
  bool all_rows_next_ = false;     // the next checkpoint has all rows, since many have changed
  int64_t lost_steps_ = 0;         // of the starts that have not succeeded yet
  bool saves_start_ = false;       // the state with which the run begins has to be saved
  ps::Client::Standing standing_;  // at the end of the last fit
  Snapshots found_;                // of the checkpoint, on the chief that begins the run, or if connected
  bool begun_ = false;             // this task has taken part in the run
  bool has_stepped_ = false;       // this task has begun a step
  int64_t last_step_ = 0;          // the number of steps after the last one that this task has made
  int64_t fits_ = 0;               // the number of completed fits
  // On the chief, for each server that writes a part of the last checkpoint: true if it was lost.
  std::map<int, std::shared_ptr<std::atomic<bool>>> writers_;
  bool has_lost_checkpoint_ = false;  // the last one of a fit, so that its last steps are made again
  int64_t lanes_ = 1;
  int64_t fit_calls_ = 0;  // the number of fits that the program has begun, those completed before included
  int64_t shares_ = 0;     // the number of values that the chief has passed to all workers since
  // On the chief: these values, for servers that have lost them.
  std::map<std::string, Json> shared_;
  bool at_work_ = false;              // between start() and the end of a fit
  comm::TimelineFile timeline_file_;  // last member, so that it is written first
};

}  // namespace tutti
