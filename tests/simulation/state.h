#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/simulation/world.h"

namespace tutti::simulation {

inline constexpr int kHooks = 2;
inline constexpr int kParts = 2;  // of the weights, handed over one after the other

// What one lane adds to a step.
struct LaneTerm {
  int64_t lane = 0;
  int64_t batch = 0;  // index in the feed
  uint64_t gradient = 0;
  bool operator==(const LaneTerm&) const = default;
};

// The whole state of a training, in small: each number stands for a hash of the real thing.
struct State {
  int64_t step = 0;
  int64_t fit = -1;
  int64_t fit_begin = 0;
  int64_t cursor = 0;  // the next batch of the feed
  std::array<uint64_t, kParts> weights = {};
  uint64_t slots = 0;
  uint64_t rate = 1;
  uint64_t generator = 2;
  std::array<uint64_t, kHooks> hooks = {};  // the states of the hooks
  bool is_told = true;
  int64_t hooks_told = 0;

  bool operator==(const State&) const = default;
  LaneTerm term(int64_t lane) const;
  // Makes a step from the terms of all lanes, which come in any order.
  void update(std::vector<LaneTerm> terms);
  // Tells the next hook of the step.
  void tell();
};

// Computes every step of a training alone, without failures.
class Oracle {
 public:
  Oracle(int64_t lanes, int64_t steps);
  // The state after this many steps, of which the first `told` hooks were told of the last one; fits
  // excluded.
  State at(int64_t step, int64_t told = kHooks) const;

 private:
  std::vector<State> told_;    // by step, with all hooks told
  std::vector<State> untold_;  // by step, with none
};

// The state without its fit, which several have at the same step.
State without_fit(State state);

}  // namespace tutti::simulation
