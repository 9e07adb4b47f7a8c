#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tests/simulation/network.h"
#include "tests/simulation/process.h"
#include "tests/simulation/state.h"
#include "tutti/transport/members.h"

namespace tutti::simulation {

// The facts that must be true at any time of any history.
class Checks {
 public:
  Checks(World& world, int64_t lanes, int64_t steps) : world_(world), lanes_(lanes), oracle_(lanes, steps) {}

  // A new epoch, and the one before.
  void began(const comm::Members& before, const comm::Members& after);
  // The launcher has seen the end of this process, or has given it up.
  void given_up(const comm::Member& member) { given_up_.insert({member.worker, member.life}); }
  // A process computes these lanes of the step after `state`.
  void computes(const Process& process, uint64_t epoch, int64_t step, const std::vector<LaneTerm>& terms);
  // It has all parts of the step, of which `state` is the result.
  void commits(const Process& process, uint64_t epoch, const State& state, const Parts& parts);
  // It goes on with this state, which it has, or has taken over.
  void goes_on(const Process& process, uint64_t epoch, const State& state);
  // It has taken over the state of its leader.
  void takes_over(const Process& process, const State& state, const State& leaders);
  // It has made all steps.
  void ends(const Process& process, const State& state);

  int64_t committed() const { return committed_; }
  int64_t taken_over() const { return taken_over_; }
  int64_t joined() const { return joined_; }

 private:
  void require_true(const Process& process, const State& state, const char* when);

  World& world_;
  const int64_t lanes_;
  const Oracle oracle_;
  std::set<std::pair<int, int>> given_up_;
  std::map<std::tuple<uint64_t, int64_t, int64_t>, const Process*> owners_;  // of an epoch, step and lane
  std::map<const Process*, int64_t> steps_;                                  // that each process has made
  int64_t committed_ = 0;                                                    // the newest step
  int64_t taken_over_ = 0;
  int64_t joined_ = 0;
};

}  // namespace tutti::simulation
