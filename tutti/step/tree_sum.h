#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/sliced_sum.h"
#include "tutti/lanes/lane_tree.h"

namespace tutti {

// The memory of TreeSum: the vectors that every lane writes into, and rooms for sums that wait. Sum i waits
// in rooms[i], or in memory that this object allocates if there are fewer rooms.
class TensorMemory {
 public:
  using Values = std::vector<torch::Tensor>;

  explicit TensorMemory(Values own, std::vector<Values> rooms = {});

  const Values& own() const { return own_; }
  const Values& room(size_t index);
  bool is_own(const Values& values) const { return !own_.empty() && values[0].is_same(own_[0]); }
  static void copy(const Values& to, const Values& from);
  static void add(const Values& to, const Values& more);

 private:
  Values own_;
  std::vector<Values> rooms_;
};

// Adds up the vectors of a lane, which are whatever is to be summed: gradients, buffers, loss and example
// count. Every sum has their type, so half precision is rounded at every addition.
class TreeSum : public LaneTree<TensorMemory> {
 public:
  using Vectors = TensorMemory::Values;

  TreeSum(Vectors vectors, LaneRange range, int64_t lanes, std::vector<Vectors> waiting_room = {});
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
