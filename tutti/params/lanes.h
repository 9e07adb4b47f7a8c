#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/tree.h"

namespace tutti {

// A contiguous block of lanes, [begin, end).
struct LaneRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const LaneRange&) const = default;
};

// Returns the lanes of a worker: contiguous blocks in rank order whose sizes differ by at most one; some are
// empty if there are more workers than lanes. Throws InvalidArgument unless 0 <= rank < world and lanes > 0.
LaneRange lanes_of(int rank, int world, int64_t lanes);

// Returns the lanes of all workers, in rank order.
std::vector<LaneRange> blocks_of(int world, int64_t lanes);

// Returns the seed of all random numbers in one lane's forward pass at one step, as in dropout. It is a pure
// function, so it needs no state and a run can resume at any step.
uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane);

// Adds the values of the lanes of a step, always in the same order: along the tree (comm/tree.h) over the
// lane index. A child that covers only lanes without data is omitted, so that it is exactly neutral. A worker
// adds the lanes of its block in order. A complete subtree waits on a stack, like the digits of a binary
// counter, until its sibling is complete too: at most log2(lanes) + 1 sums at a time, and none for one lane.
//
// The vectors of a lane are whatever is to be summed: gradients, buffers, loss and example count. All lanes
// write into the same vectors, and every sum has their type, so half precision is rounded at every addition.
// add() copies values that have to wait to other memory, and the last sum is left in the vectors. Not
// thread-safe.
class TreeSum {
 public:
  using Vectors = std::vector<torch::Tensor>;

  // A sum that this worker holds. `values` is empty if none of its lanes had data.
  struct Subtree {
    comm::TreeNode place;
    std::optional<Vectors> values;
  };

  // `block` are the lanes that will be added, of `lanes` in all.
  TreeSum(Vectors vectors, LaneRange block, int64_t lanes);

  // Adds the next lane, whose values are in the vectors. Afterwards their content is undefined.
  void add() { push({{0, next_lane_}, vectors_}); }
  // Adds the next lane, which had no data.
  void skip() { push({{0, next_lane_}, std::nullopt}); }

  // Forgets the lanes that were added in a step that was broken off.
  void reset();

  // Returns the sums of the block, in lane order; if the block is all lanes, there is one, the root. The
  // values of the last sum are the vectors themselves. Afterwards the lanes of the next step may be added.
  std::vector<Subtree> finish();

 private:
  void push(Subtree node);
  Vectors copy_of_vectors();

  const Vectors vectors_;
  const LaneRange block_;
  const int64_t lanes_;
  int64_t next_lane_;
  std::vector<Subtree> waiting_;
  std::vector<Vectors> spare_;  // memory of merged sums, to be reused
};

}  // namespace tutti
