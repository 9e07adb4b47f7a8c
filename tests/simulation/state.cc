#include "tests/simulation/state.h"

#include <algorithm>

namespace tutti::simulation {

LaneTerm State::term(int64_t lane) const {
  return {lane, cursor,
          mix(static_cast<uint64_t>(lane), static_cast<uint64_t>(cursor), weights[0], weights[1], generator)};
}

void State::update(std::vector<LaneTerm> terms) {
  std::sort(terms.begin(), terms.end(), [](const LaneTerm& a, const LaneTerm& b) { return a.lane < b.lane; });
  uint64_t sum = 0;
  for (const LaneTerm& term : terms) sum = mix(sum, term.gradient, term.lane, term.batch);
  slots = mix(slots, sum);
  for (size_t part = 0; part < kParts; ++part) weights[part] = mix(weights[part], slots, rate, part);
  rate = mix(rate, 3);
  generator = mix(generator, 4);
  ++step;
  ++cursor;
  is_told = false;
  hooks_told = 0;
}

void State::tell() {
  auto& hook = hooks.at(static_cast<size_t>(hooks_told));
  hook = mix(hook, static_cast<uint64_t>(step), weights[0]);
  if (++hooks_told == kHooks) is_told = true;
}

Oracle::Oracle(int64_t lanes, int64_t steps) {
  State state;
  told_.push_back(state);
  untold_.push_back(state);
  while (state.step < steps) {
    std::vector<LaneTerm> terms;
    for (int64_t lane = 0; lane < lanes; ++lane) terms.push_back(state.term(lane));
    state.update(terms);
    untold_.push_back(state);
    for (int hook = 0; hook < kHooks; ++hook) state.tell();
    told_.push_back(state);
  }
}

State Oracle::at(int64_t step, int64_t told) const {
  if (told == kHooks) return told_.at(static_cast<size_t>(step));
  State state = untold_.at(static_cast<size_t>(step));
  while (state.hooks_told < told) state.tell();
  return state;
}

State without_fit(State state) {
  state.fit = -1;
  state.fit_begin = 0;
  if (state.is_told) state.hooks_told = kHooks;
  return state;
}

}  // namespace tutti::simulation
