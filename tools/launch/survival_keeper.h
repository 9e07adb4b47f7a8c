#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/keeper_board.h"
#include "tools/launch/members_keeper.h"
#include "tools/launch/restart_pause.h"
#include "tools/launch/scaling.h"
#include "tools/launch/survival.h"
#include "tools/launch/survival_board.h"
#include "tutti/transport/board/tcp_rendezvous.h"

namespace tutti {

// A host of the job. Workers are counted in the order of their hosts.
struct SurvivalHost {
  std::string name = {};  // for messages
  int workers = 0;        // at most
};

struct SurvivalOptions {
  std::vector<SurvivalHost> hosts = {};
  std::optional<size_t> own = 0;  // the host whose workers are those of this launcher; nullopt: it has none
  int min = 0;                    // the least number of workers with which the job goes on
  std::optional<int> first = {};  // how many workers the job begins with; nullopt: all
  int restarts = 0;               // of single workers and of the whole job, in all
  int restarts_before = 0;        // how many of them there were before this start of the job
  // The time that members have for their calls after the first of them has called.
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds grace = kSavingGrace;  // as LaunchOptions::grace
  std::string launch = {};                         // as Identity::launch
  std::string secret = {};                         // of the tasks
  std::string listen_at = "127.0.0.1";             // "": all addresses of this machine
  uint16_t port = 0;                               // 0: any
  // With --nnodes, by host: the launchers that were at the meeting (EpochDecision::launchers).
  std::vector<std::string> launchers = {};
  std::function<void()> at_end = {};  // called before other launchers hear of the end of the job
};

// Serves the board of a launcher.
comm::ServedRendezvous serve_members_board(const SurvivalOptions& options);
// The host of each worker.
std::vector<int> hosts_by_worker(const std::vector<SurvivalHost>& hosts);

// The Survival of the launcher that keeps the list of members: has the keeper of the list and the board on
// which all workers find it, and decides for the workers of all hosts. It must outlive the workers.
class SurvivalKeeper final : public Survival {
 public:
  explicit SurvivalKeeper(const SurvivalOptions& options);
  // With other launchers, which have to agree. After the first term it takes the place of another keeper:
  // reads from its board what the launchers know that have voted for it.
  SurvivalKeeper(const SurvivalOptions& options, comm::ServedRendezvous served, EpochAgreement agreement);

  uint16_t port() const { return served_.port; }
  // Another host has this place now, and is to run the first `workers` of its workers. Its launcher is not
  // connected yet.
  void set_host(size_t host, const std::string& name, int workers);
  // Returns false as long as too few workers of other hosts train, and these have enough slots for more.
  bool can_do_without(const std::vector<size_t>& hosts, int other_slots) const;
  // The launcher of this host has ended. Returns true if the job goes on without the host.
  bool goes_on_without_host(size_t host);

  int first_worker() const override;
  bool begins_with(int worker) const override { return wanted_.contains(worker); }
  void add_variables(int worker, std::map<std::string, std::string>& variables) const override;
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  bool has_other_hosts() const override { return options_.hosts.size() > (options_.own ? 1 : 0); }
  std::chrono::milliseconds look_again() const override;
  void ended(const EndedWorker& ended) override;
  void stays_away(int worker) override;
  bool dismiss_own_workers() override;
  void stop(const JobEnd& end) override;
  std::chrono::milliseconds failure_grace() const override {
    return keeper_.has_too_few() && !keeper_.ended() ? options_.grace : kFailureGrace;
  }
  std::vector<WorkerOrder> look(const Say& say) override;
  bool job_is_done() const override { return keeper_.finished(); }
  bool is_over() const override { return running_.empty() && (end_ || !fails_); }
  std::optional<JobEnd> end() const override { return end_; }

 private:
  // A change of the number of workers (survival_scaling.cc).
  struct Scaling {
    ScaleRequest request;
    ScaleAnswer answer = {};
    std::set<int> coming = {};
    std::set<int> leaving = {};
  };
  // A host, and what its launcher was told if it is another one.
  struct Host {
    std::string name = {};
    int slots = 0;           // the first of its workers, which may run
    std::string token = {};  // "": it is not connected
    bool has_come = false;
    bool is_refused = false;  // it has come again, and no worker of it was taken in so far
    HostOrders orders = {};
    std::string published = {};
  };

  int first_worker_of(size_t host) const;
  size_t host_of(int worker) const;
  bool is_connected(size_t host) const { return host == options_.own || !hosts_[host].token.empty(); }
  void take_over(const Say& say);
  std::vector<std::string> launchers() const;
  bool notices_stop();
  bool was_stopped() const;
  void look_at_host(size_t host, const Say& say);
  void read_reports(size_t host);
  void welcome_hosts();
  bool is_too_late(size_t host, const std::string& token) const;
  void welcome(size_t host, const std::string& token);
  void lose_host(size_t host, const Say& say);
  void settle_losses(const Say& say);
  void go_on_without(const EndedWorker& lost, const Say& say);
  void end_here(const Say& say);
  bool is_newcomer(int worker) const;
  std::string why_outside(int worker) const;
  void dismiss_if_refused(const EndedWorker& lost);
  void fail_job_for(const EndedWorker& lost);
  void give(const WorkerOrder& order);
  void end_with(const JobEnd& end);
  void finish_if_over(const Say& say);
  bool something_is_undone() const;
  void publish_orders();
  void look_for_scaling(const Say& say);
  void begin_scaling(const std::string& text, const Say& say);
  std::string why_not_scale(int workers) const;
  std::string why_not_start(int worker) const;
  std::string call_workers(int count);
  void dismiss_workers(int count);
  void dismiss(int worker);
  void follow_scaling();
  void answer_scaling(const std::string& line, std::optional<int> exit_code = {});
  std::string describe_rest() const;
  int restarts_left() const { return options_.restarts - restarts_; }
  int restarts_used() const;

  const SurvivalOptions options_;
  const comm::ServedRendezvous served_;
  const EpochAgreement elected_;  // as this keeper has begun
  MembersKeeper keeper_;
  KeeperBoard keeper_board_;
  // When the launchers of the other hosts, which have been together before, must be connected.
  const std::chrono::steady_clock::time_point come_by_;
  std::chrono::steady_clock::time_point looked_at_ = std::chrono::steady_clock::now();
  std::optional<std::chrono::steady_clock::time_point> stopped_until_;
  int restarts_;                         // so far
  std::map<int, int> last_restart_;      // by worker: the life that has begun
  std::map<int, RestartPause> pauses_;   // by worker
  std::set<int> running_;                // workers that run, or are to be started again
  std::set<int> wanted_;                 // workers that run if nothing happens to them
  std::set<int> leave_with_host_;        // of this host, which comes again with them
  std::optional<Scaling> scaling_;       // not done yet
  std::string scale_request_;            // the last one that was read
  std::vector<Host> hosts_;              // this one too
  bool own_host_leaves_ = false;         // its machine is about to be taken away
  std::vector<EndedWorker> lost_;        // workers without which the others may go on, not settled yet
  std::vector<std::string> to_say_;      // by the next look()
  std::vector<WorkerOrder> own_orders_;  // for workers of this launcher, not taken yet
  bool takes_over_ = false;              // from another keeper, at the next look()
  bool fails_ = false;                   // the TaskGroup of this launcher was told so
  std::optional<JobEnd> end_;
};

}  // namespace tutti
