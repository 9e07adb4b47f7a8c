#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/mistakes.h"
#include "tests/simulation/process.h"
#include "tools/launch/keeper_board.h"
#include "tools/launch/members_keeper.h"
#include "tools/launch/succession.h"

namespace tutti::simulation {

// The circumstances of launchers that have to agree, drawn from a seed.
struct LaunchersScenario {
  std::vector<int> workers = {};  // by host
  Time timeout = kSecond;
  Time slowest = 3 * kMillisecond;  // message
  // Nothing but deaths, one after the other: then it is known who has to go on.
  bool only_deaths = false;
  int faults = 0;
  Time calm_from = kSecond;
};
LaunchersScenario draw_launchers(Random& random);

// The launchers of a job with --nnodes, as fibers: the production code of their agreement, of the succession
// and of the keeper's board, over a network that delays and loses messages in one direction or both, while
// launchers are killed and stopped. The loops of SurvivalKeeper and SurvivalGuest are copied. Workers only
// die. Not thread-safe.
class Launchers {
 public:
  Launchers(uint64_t seed, Mistake mistake, bool prints);
  ~Launchers();

  struct Result {
    std::optional<std::string> violation = {};
    uint64_t log_hash = 0;
    int64_t epochs = 0;
    int64_t successions = 0;
    int64_t ended = 0;  // launchers that have ended since they were too few
  };
  // Runs until all is settled, or to the first broken promise.
  Result run();

 private:
  class Link;
  class OwnBoard;
  struct Host {
    std::unique_ptr<Process> launcher = {};
    std::shared_ptr<comm::LocalRendezvous> board = {};
    std::map<size_t, Time> heard = {};  // when the board has heard the launcher of another host
    std::set<int> dead_workers = {};
    std::optional<size_t> follows = {};  // the keeper, also itself
    bool gives_up = false;
  };

  void program(size_t own);
  void serve(size_t own, EpochVoter& voter);
  void keep(size_t own, const EpochVote& vote, EpochAgreement agreement);
  std::vector<std::string> present(size_t own, std::set<size_t>& lost) const;
  SuccessionOptions succession(size_t own);
  std::shared_ptr<comm::Rendezvous> connect(size_t from, size_t to);
  void has_begun(size_t host, const comm::Members& members);
  bool reaches(size_t from, size_t to) const { return !cut_.contains({from, to}); }
  Process& launcher(size_t host) const { return *hosts_[host].launcher; }
  std::vector<int> host_of_worker() const;
  Time delay() { return world_.random().draw(20, scenario_.slowest); }

  void plan_faults();
  void fail_once();
  void cut();
  void expect_after_death(size_t dead);
  void check_end();

  const Mistake mistake_;
  World world_;
  const LaunchersScenario scenario_;
  std::vector<Host> hosts_;
  std::set<std::pair<size_t, size_t>> cut_;  // links, from and to
  std::map<uint64_t, comm::Members> begun_;  // epochs that were published anywhere
  std::set<size_t> expected_;                // with deaths alone: hosts that go on; {}: nobody
  size_t expected_keeper_ = 0;
  Result result_;
};

}  // namespace tutti::simulation
