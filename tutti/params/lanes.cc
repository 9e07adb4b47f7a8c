#include "tutti/params/lanes.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

LaneRange lanes_of(int rank, int world, int64_t lanes) {
  if (rank < 0 || rank >= world || lanes < 1) {
    fail(ErrorKind::InvalidArgument, "rank {} of {} workers with {} lanes is not a valid share", rank, world,
         lanes);
  }
  const int64_t share = lanes / world;
  const int64_t larger = lanes % world;  // this many workers, from rank 0 on, have one lane more
  const int64_t begin = rank * share + std::min<int64_t>(rank, larger);
  return {begin, begin + share + (rank < larger ? 1 : 0)};
}

std::vector<LaneRange> blocks_of(int world, int64_t lanes) {
  std::vector<LaneRange> blocks;
  for (int rank = 0; rank < world; ++rank) blocks.push_back(lanes_of(rank, world, lanes));
  return blocks;
}

uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane) {
  return mix(mix(mix(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(step)) +
             static_cast<uint64_t>(lane));
}

}  // namespace tutti
