#pragma once

#include <cstdint>
#include <vector>

namespace tutti {

// A contiguous block of lanes, [begin, end).
struct LaneRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const LaneRange&) const = default;
};

// The lanes of a worker: contiguous blocks in rank order whose sizes differ by at most one.
// More workers than lanes leave some without any. InvalidArgument unless 0 <= rank < world and lanes > 0.
LaneRange lanes_of(int rank, int world, int64_t lanes);

// Those of all workers, in rank order.
std::vector<LaneRange> blocks_of(int world, int64_t lanes);

// The seed of everything random in one lane's forward at one step (dropout): a pure function, so that it
// needs no state and resumes anywhere.
uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane);

}  // namespace tutti
