#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tools/launch/survival.h"
#include "tools/launch/survival_board.h"
#include "tutti/comm/rendezvous.h"

namespace tutti {

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
};

// The Survival of a launcher whose job has its list of members at the launcher of another host. If the
// connection to that launcher is lost, the job ends here.
class SurvivalGuest final : public Survival {
 public:
  // Connects, and waits until the keeper has noticed this launcher. Throws as find_tcp_rendezvous().
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
  std::vector<WorkerOrder> look(const Say& say) override;
  bool job_is_done() const override { return known_.job_is_done; }
  bool is_over() const override { return end_.has_value(); }
  std::optional<JobEnd> end() const override { return end_; }

 private:
  void keep_in_touch();
  void exchange(std::unique_lock<std::mutex>& lock);
  void report(const std::string& key, const std::string& value);
  int life_of(int worker) const { return lives_.at(static_cast<size_t>(worker - options_.first_worker)); }

  const GuestOptions options_;
  const std::string token_;
  std::string address_;  // HOST:PORT that has answered
  std::shared_ptr<comm::Rendezvous> board_;
  std::vector<int> lives_;     // of the workers of this host
  HostOrders known_;           // that look() has seen
  std::optional<JobEnd> end_;  // that look() has seen, or that this launcher has begun

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, std::string>> reports_;  // not sent yet; guarded by mutex_
  HostOrders received_;                                      // guarded by mutex_
  std::string lost_;       // why the keeper cannot be reached any more; guarded by mutex_
  bool leaves_ = false;    // guarded by mutex_
  std::thread messenger_;  // sends reports and looks for orders, since the network may block
};

}  // namespace tutti
