#include "tutti/lanes/lanes.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/hashes.h"

namespace tutti {

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

std::vector<LaneRange> lanes_of_all(int world, int64_t lanes) {
  std::vector<LaneRange> ranges;
  for (int rank = 0; rank < world; ++rank) ranges.push_back(lanes_of(rank, world, lanes));
  return ranges;
}

uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane) {
  uint64_t mixed = mix_bits(static_cast<uint64_t>(seed) + kGoldenBits);
  mixed = mix_bits(mixed + static_cast<uint64_t>(step) + kGoldenBits);
  return mix_bits(mixed + static_cast<uint64_t>(lane) + kGoldenBits);
}

}  // namespace tutti
