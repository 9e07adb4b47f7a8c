#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/launch/epoch_agreement.h"
#include "tools/launch/succession.h"
#include "tools/launch/survival.h"
#include "tools/launch/survival_board.h"
#include "tutti/base/address.h"
#include "tutti/transport/board/tcp_rendezvous.h"
#include "tutti/transport/rendezvous.h"

namespace tutti {

// The launchers of a job of which each may take the place of the keeper.
struct LaunchersBoards {
  std::vector<std::string> hosts = {};  // their names, for messages
  std::vector<int> host_of_worker = {};
  comm::ServedRendezvous own = {};
  EpochVote vote = {};       // of this launcher, in the beginning
  bool comes_again = false;  // another launcher of this host was part of the job
};

struct GuestOptions {
  size_t host = 0;       // the index of this host
  int first_worker = 0;  // the first of its workers
  int workers = 0;
  std::vector<std::string> addresses;  // at which the keeper may be reached
  uint16_t port = 0;
  std::string keeper = {};  // its name for messages: "the launcher of node 0"
  std::string launch = {};  // as Identity::launch
  std::string secret = {};  // of the tasks
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds start_timeout{300'000};  // for the keeper to answer
  std::optional<LaunchersBoards> launchers = {};     // nullopt: the job ends here without the keeper
};

// The Survival of a launcher whose job has its list of members at the launcher of another host. If that one
// is lost, finds the launcher that takes its place (succession.h), or ends the job here.
class SurvivalGuest final : public Survival {
 public:
  // Connects, and waits until the keeper has noticed this launcher. Throws as find_tcp_rendezvous(). A
  // launcher that comes again does not wait long: the keeper may just have been lost.
  explicit SurvivalGuest(const GuestOptions& options);
  ~SurvivalGuest() override;

  int first_worker() const override { return options_.first_worker; }
  bool begins_with(int worker) const override { return life_of(worker) != kAway; }
  void add_variables(int worker, std::map<std::string, std::string>& variables) const override;
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  bool has_other_hosts() const override { return true; }
  std::chrono::milliseconds look_again() const override;
  void ended(const EndedWorker& ended) override;
  void stays_away(int worker) override;
  bool dismiss_own_workers() override { return false; }
  void stop(const JobEnd& end) override;
  std::chrono::milliseconds failure_grace() const override { return end_ ? end_->grace : kFailureGrace; }
  std::vector<WorkerOrder> look(const Say& say) override;
  bool job_is_done() const override { return known_.job_is_done; }
  bool is_over() const override;
  std::optional<JobEnd> end() const override { return end_; }
  // If the other launchers have agreed that this one keeps the list from here on: returns their votes, once.
  // This guest does nothing more then, and its board has what the keeper needs to know of this host.
  std::optional<EpochAgreement> take_election();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Leaves {};

  bool comes_again() const { return options_.launchers && options_.launchers->comes_again; }
  void find_keeper(std::chrono::milliseconds timeout);
  void enter_job();
  void keep_in_touch(std::string lost);
  void serve_keeper(Lock& lock);
  void exchange(Lock& lock);
  void follow_successor(Lock& lock, const std::string& lost);
  SuccessionOptions succession_options();
  std::optional<Address> board_of(size_t host) const;
  std::shared_ptr<comm::Rendezvous> connect_to(size_t host);
  void report(const std::string& key, const std::string& value);
  HostStanding::Worker& entry_of(int worker) {
    return standing_.workers.at(static_cast<size_t>(worker - options_.first_worker));
  }
  int life_of(int worker) const;

  const GuestOptions options_;
  const std::string token_;
  std::string address_;   // HOST:PORT that has answered
  Address reached_ = {};  // the board of another launcher that has answered last
  std::shared_ptr<comm::Rendezvous> board_;
  std::optional<EpochVoter> voter_;
  std::string seen_proposal_;
  HostOrders known_;           // that look() has seen
  std::optional<JobEnd> end_;  // that look() has seen, or that this launcher has begun

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All below: guarded by mutex_.
  std::deque<std::pair<std::string, std::string>> reports_;  // not sent yet
  std::map<std::string, std::string> sent_;                  // to be sent again to another keeper
  HostStanding standing_;                                    // of the workers of this host
  HostOrders received_;
  size_t taken_ = 0;    // orders of received_ that look() has returned
  std::string keeper_;  // its name for messages
  bool is_member_;      // a worker of this host is in the newest epoch, as far as is known
  bool is_elected_ = false;
  std::optional<EpochAgreement> election_;
  std::string lost_;  // why the keeper cannot be reached any more
  bool leaves_ = false;
  std::thread messenger_;  // sends reports and looks for orders, since the network may block
};

}  // namespace tutti
