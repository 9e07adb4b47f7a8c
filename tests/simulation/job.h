#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/board.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/mistakes.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process.h"
#include "tests/simulation/worker.h"
#include "tools/launch/keeper_board.h"
#include "tools/launch/members_keeper.h"

namespace tutti::simulation {

// The circumstances of one simulation, drawn from its seed.
struct Scenario {
  int workers = 2;  // at most
  int first = 2;    // with which the job begins
  int min = 1;
  int restarts = 0;  // of single workers
  int hosts = 1;     // each with the same number of workers, or one less
  Program program;
  BoardDelays board;
  NetworkDelays network;
  Time look_every = 10 * kMillisecond;      // the launcher looks at the board
  Time longest_pause = 300 * kMillisecond;  // before a restart
  // Failures, which all happen before `calm_from`.
  int faults = 0;
  int lost_hosts = 0;  // times that a host is lost with all its workers; it comes again after a while
  int scalings = 0;    // times that the number of workers is changed
  Time calm_from = kSecond;
  double kill_share = 0.7;   // of the faults; the others stop a process
  double place_share = 0.5;  // of the faults happen at a place of the program, the others at a time
  double place_chance = 0.01;
  double hand_over_chance = 0;  // at places where a state is handed over; 0: as elsewhere
};
Scenario draw_scenario(Random& random);

struct Result {
  enum class End {
    Complete,  // all members have made all steps
    TooFew,    // fewer than --min were left, or none
    NoState,   // all that had the state were lost
    AtStart,   // a worker was lost while the others made their models
    AtTheEnd,  // a worker was lost after another had ended its program
    Violation,
  };
  End end = End::Complete;
  std::string violation;  // or ""
  uint64_t log_hash = 0;
  int64_t events = 0;
  int64_t epochs = 0;
  int64_t kills = 0;
  int64_t stops = 0;
  int64_t evicted = 0;
  int64_t left = 0;
  int64_t joined = 0;
  int64_t taken_over = 0;
  int64_t steps = 0;
};
const char* name_of(Result::End end);

// One job under `tutti run --min`: its launcher (the production keeper and its board; the rest as
// SurvivalKeeper does it), the processes of its workers, and what happens to them. Not thread-safe.
class Job {
 public:
  Job(uint64_t seed, Mistake mistake, bool prints);
  ~Job();

  // Runs to the end of the job, or to the first broken promise.
  Result run();

 private:
  struct Slot {
    std::vector<std::unique_ptr<Process>> lives;
    std::vector<std::unique_ptr<Worker>> workers;  // one for each life that has begun
    bool starts_again = false;
    bool is_seen = true;  // the launcher has seen the end of the newest life, if there was one
    bool is_over() const { return !starts_again && is_seen; }
    bool has_begun() const { return !lives.empty(); }
    Process& newest() const { return *lives.back(); }
  };

  void start(int worker, int life);
  void program(Process& process, size_t life);
  void has_ended(Process& process);
  // The launcher.
  void notice_end(int worker, int life);
  void look();
  void survive();
  void start_again_after_pause(int worker);
  void fail_job(Result::End end, const std::string& why);
  Result::End why_failed(const Process& process);
  // Failures.
  void plan_faults();
  void hit(Process& process);
  void scale_to(int workers);
  void let_leave(int worker);
  void lose_host(int host);
  void bring_back(int host);
  int host_of(int worker) const { return worker % scenario_.hosts; }
  std::vector<int> hosts_of_workers() const;
  void at_place(Process& process, const char* place);

  void check_end();
  bool is_over() const;
  bool someone_lives_with_state() const;

  const Mistake mistake_;
  World world_;
  const Scenario scenario_;
  Checks checks_;
  Network network_;
  const std::shared_ptr<comm::LocalRendezvous> board_;
  MembersKeeper keeper_;
  KeeperBoard keeper_board_;
  std::vector<Slot> slots_;
  std::vector<int> lost_;
  std::set<int> wanted_;  // workers that run if nothing happens to them
  std::set<int> gone_hosts_;
  int restarts_used_ = 0;
  int place_faults_ = 0;  // left
  size_t checked_epochs_ = 1;
  std::optional<Result::End> failed_;
  int complete_ = 0;  // processes that have ended well
  Result result_;
};

}  // namespace tutti::simulation
