#include "tests/simulation/checks.h"

#include <algorithm>

namespace tutti::simulation {

void Checks::began(const comm::Members& before, const comm::Members& after) {
  if (!before.end.empty()) world_.violate("epoch {} begins after the end", after.epoch);
  if (after.epoch != before.epoch + 1) world_.violate("epoch {} follows {}", after.epoch, before.epoch);
  if (after.by_rank.empty()) return;
  if (!before.rank_of(after.by_rank.front()))
    world_.violate("rank 0 of epoch {} was not a member before", after.epoch);
  std::set<int> workers;
  for (const comm::Member& member : after.by_rank) {
    if (!workers.insert(member.worker).second)
      world_.violate("worker/{} is twice in epoch {}", member.worker, after.epoch);
    if (given_up_.contains({member.worker, member.life}))
      world_.violate("worker/{}.{} is a member of epoch {} after its end", member.worker, member.life,
                     after.epoch);
    if (!before.rank_of(member)) ++joined_;
  }
}

void Checks::computes(const Process& process, uint64_t epoch, int64_t step,
                      const std::vector<LaneTerm>& terms) {
  if (given_up_.contains({process.self().worker, process.self().life}))
    world_.violate("{} acts in step {} of epoch {} although it was given up", process.name(), step, epoch);
  for (const LaneTerm& term : terms) {
    const auto [owner, is_new] = owners_.insert({{epoch, step, term.lane}, &process});
    if (!is_new && owner->second != &process)
      world_.violate("lane {} of step {} of epoch {} belongs to {} and {}", term.lane, step, epoch,
                     owner->second->name(), process.name());
  }
}

void Checks::commits(const Process& process, uint64_t epoch, const State& state, const Parts& parts) {
  std::vector<std::pair<int64_t, int64_t>> lanes;
  for (const auto& part : parts) {
    for (const LaneTerm& term : part->terms) lanes.emplace_back(term.lane, term.batch);
  }
  std::sort(lanes.begin(), lanes.end());
  bool is_exact = static_cast<int64_t>(lanes.size()) == lanes_;
  for (size_t i = 0; is_exact && i < lanes.size(); ++i)
    is_exact = lanes[i] == std::pair(static_cast<int64_t>(i), state.step - 1);
  if (!is_exact)
    world_.violate("{} commits step {} in epoch {} with wrong lanes", process.name(), state.step, epoch);
  committed_ = std::max(committed_, state.step);
  require_true(process, state, "after a step");
}

void Checks::goes_on(const Process& process, uint64_t epoch, const State& state) {
  world_.log("{} goes on in epoch {} at step {}, {} hooks told", process.name(), epoch, state.step,
             state.hooks_told);
  require_true(process, state, "when it goes on");
}

void Checks::takes_over(const Process& process, const State& state, const State& leaders) {
  ++taken_over_;
  if (state != leaders)
    world_.violate("{} does not have the state that it has taken over at step {}", process.name(),
                   leaders.step);
}

void Checks::ends(const Process& process, const State& state) { require_true(process, state, "at its end"); }

// A process never loses a step, and its state is the oracle's.
void Checks::require_true(const Process& process, const State& state, const char* when) {
  int64_t& made = steps_[&process];
  if (state.step < made) world_.violate("{} goes back from step {} to {}", process.name(), made, state.step);
  made = state.step;
  if (without_fit(state) != without_fit(oracle_.at(state.step, state.is_told ? kHooks : state.hooks_told)))
    world_.violate("{} has another state than the oracle {}, at step {}", process.name(), when, state.step);
}

}  // namespace tutti::simulation
