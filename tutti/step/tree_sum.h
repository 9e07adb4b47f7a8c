#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/sliced_sum.h"
#include "tutti/lanes/lanes.h"

namespace tutti {

// Adds the values of the lanes of a step, always in the same order: along the tree (comm/reduce.h) over the
// lane index. A child that covers only lanes without data is omitted, so that it is exactly neutral. A worker
// adds the lanes of its range in order. A complete subtree waits on a stack, like the digits of a binary
// counter, until its sibling is complete too: at most log2(lanes) + 1 sums at a time, and none for one lane.
//
// The vectors of a lane are whatever is to be summed: gradients, buffers, loss and example count. All lanes
// write into the same vectors, and every sum has their type, so half precision is rounded at every addition.
// Sums that have to wait are in other memory, and the last sum is left in the vectors. Not thread-safe.
class TreeSum {
 public:
  using Vectors = std::vector<torch::Tensor>;

  // A sum that this worker holds. `values` is empty if none of its lanes had data.
  struct Subtree {
    comm::TreeNode place;
    std::optional<Vectors> values;
  };

  // `range` are the lanes that will be added, of `lanes` in all. Sum i waits in waiting_room[i], or in memory
  // of this object if there are fewer.
  TreeSum(Vectors vectors, LaneRange range, int64_t lanes, std::vector<Vectors> waiting_room = {});

  // Adds the next lane, whose values are in the vectors. Afterwards their content is undefined.
  void add() { push(vectors_); }
  // Adds the next lane, which had no data.
  void skip() { push(std::nullopt); }

  // Forgets the lanes that were added in a step that was broken off.
  void reset();

  // Returns the sums of the range, in lane order; if the range is all lanes, there is one, the root. The
  // values of the last sum are the vectors themselves, and the values of any other sum i are where it has
  // waited. Afterwards the lanes of the next step may be added, which overwrites the values.
  std::vector<Subtree> finish();

 private:
  void push(std::optional<Vectors> values);
  bool are_vectors(const Vectors& values) const;
  void copy_to(const Vectors& to, const Vectors& from) const;

  const Vectors vectors_;
  const LaneRange range_;
  const int64_t lanes_;
  int64_t next_lane_;
  std::vector<Subtree> waiting_;
  std::vector<Vectors> waiting_room_;  // [index in waiting_]
};

// Returns the reduction that adds `count` elements in the way TreeSum adds them.
inline comm::Reduction sum_of(torch::ScalarType type, int64_t count, double divisor = 0) {
  return {.type = comm::element_type(type),
          .op = comm::ReduceOp::Sum,
          .count = count,
          .divisor = divisor,
          .parts = 0,
          .round_each = true};
}

}  // namespace tutti
