#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

// A contiguous range of lanes, [begin, end).
struct LaneRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const LaneRange&) const = default;
};

// Returns the lanes of a worker: contiguous ranges in rank order whose sizes differ by at most one; some are
// empty if there are more workers than lanes. Throws InvalidArgument unless 0 <= rank < world and lanes > 0.
LaneRange lanes_of(int rank, int world, int64_t lanes);

// Returns the lanes of all workers, in rank order.
std::vector<LaneRange> lanes_of_all(int world, int64_t lanes);

// Returns the seed of all random numbers in one lane's forward pass at one step, as in dropout. It is a pure
// function, so it needs no state and a run can resume at any step.
uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane);

}  // namespace tutti
