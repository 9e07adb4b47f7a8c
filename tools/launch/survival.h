#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tools/launch/keeper_board.h"
#include "tools/launch/members_keeper.h"
#include "tools/launch/outcome.h"
#include "tutti/base/environment.h"
#include "tutti/comm/board/tcp_rendezvous.h"

namespace tutti {

struct SurvivalOptions {
  int workers = 0;
  int min = 0;              // the least number of workers with which the job goes on
  int restarts = 0;         // of single workers and of the whole job, in all
  int restarts_before = 0;  // how many of them there were before this start of the job
  // The time that members have for their calls after the first of them has called.
  std::chrono::milliseconds timeout{60'000};
  std::string launch = {};  // as Identity::launch
  std::string secret = {};  // of the tasks
};

// What a group of tasks needs to go on without workers that are lost (`tutti run --min`): the keeper of the
// list of members, and the board at 127.0.0.1 on which the workers find the list, with a port of its own. It
// must outlive the workers. Not thread-safe.
class Survival {
 public:
  explicit Survival(const SurvivalOptions& options);

  // Adds what a worker needs to find the board, and its life.
  void add_variables(int worker, std::map<std::string, std::string>& variables) const;
  // A signal is sent to all workers: none of them leaves alone.
  void stop() { served_.board->set(comm::kStopKey, "yes"); }
  bool may_lose(int worker, const Outcome& outcome) const {
    return tutti::may_lose(keeper_, worker, outcome);
  }
  void lose(int worker, MembersKeeper::Then then) { keeper_.lost(worker, then); }
  void ended_well(int worker) { keeper_.ended_well(worker); }
  // No worker takes the place of another any more, since `why`.
  void finish(const std::string& why) { keeper_.finish(why); }
  // Returns true if the members of this epoch were connected.
  bool has_entered(uint64_t epoch) const;
  int restarts_left() const { return options_.restarts - restarts_; }
  // This worker is started again. Returns which restart it is, from 1.
  int use_restart(int worker);
  // The number of restarts of single workers since this start of the job, without those that have not joined.
  int restarts_used() const;
  // Reads the calls, decides and publishes.
  void look() { keeper_board_.look(std::chrono::steady_clock::now()); }

  const MembersKeeper& keeper() const { return keeper_; }
  const SurvivalOptions& options() const { return options_; }
  // Workers to be killed, each of them once.
  std::vector<comm::Member> take_evicted() { return keeper_.take_evicted(); }
  // Workers that have come back and have become members since the last call.
  std::vector<comm::Member> take_joined() { return keeper_board_.take_joined(); }

 private:
  const SurvivalOptions options_;
  MembersKeeper keeper_;
  int restarts_;                     // so far
  std::map<int, int> last_restart_;  // by worker: the life that has begun
  const comm::ServedRendezvous served_;
  KeeperBoard keeper_board_;
};

// Returns the seconds of TUTTI_TIMEOUT, or the default of --timeout.
std::chrono::milliseconds survival_timeout(const Environment& environment);

}  // namespace tutti
