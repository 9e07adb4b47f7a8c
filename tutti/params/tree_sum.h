#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/tree.h"
#include "tutti/params/lanes.h"

namespace tutti {

// Adds what the lanes of a step give, always in the same order: along the tree (comm/tree.h) over the lane
// index. A child that covers only lanes without data is left out, so that it is exactly neutral. A worker
// adds the lanes of its block in order. What is a whole subtree waits on a stack, like the digits of a binary
// counter, until its sibling is there too: at most log2(lanes) + 1 sums at a time, and none for one lane.
//
// The vectors of a lane are whatever is to be summed: gradients, buffers, loss and example count. All lanes
// write into the same ones, and every sum is of their type, so that half precision is rounded at every
// addition; add() takes away what has to wait, and the last sum is left in them. Not
// thread-safe.
class TreeSum {
 public:
  using Vectors = std::vector<torch::Tensor>;

  // A sum that this worker holds. Without `values` none of its lanes had data.
  struct Subtree {
    comm::TreeNode place;
    std::optional<Vectors> values;
  };

  // `block` are the lanes that will come, of `lanes` in all.
  TreeSum(Vectors vectors, LaneRange block, int64_t lanes);

  // The vectors hold the values of the next lane. Afterwards their content is undefined.
  void add();
  // The next lane had no data.
  void skip();

  // Forgets the lanes that have come, of a step that was broken off.
  void reset();

  // What the block sums up to, in lane order: one subtree, the root, where the block is all lanes. The values
  // of the last one are the vectors themselves. Ready for the next step's lanes afterwards.
  std::vector<Subtree> finish();

 private:
  void push(Subtree node);
  Vectors copy_of_vectors();

  const Vectors vectors_;
  const LaneRange block_;
  const int64_t lanes_;
  int64_t next_lane_;
  std::vector<Subtree> waiting_;
  std::vector<Vectors> spare_;  // memory of sums that were merged, to be used again
};

}  // namespace tutti
