#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/check.h"
#include "tutti/lanes/lanes.h"
#include "tutti/transport/reduce.h"

namespace tutti {

// Adds the values of the lanes of a step, always in the same order: along the tree (transport/reduce.h) over
// the lane index. A child that covers only lanes without data is omitted, so that it is exactly neutral. A
// worker adds the lanes of its range in order. A complete subtree waits on a stack, like the digits of a
// binary counter, until its sibling is complete too: at most log2(lanes) + 1 sums at a time, and none for one
// lane.
//
// All lanes write into the same memory, `memory.own()`. A sum that has to wait is in `memory.room(i)`, i
// being its place on the stack, and the last sum is left in the own one. Memory also has `Values`, which
// refers to memory, is_own(values), copy(to, from) and add(to, more). Not thread-safe.
template <class Memory>
class LaneTree {
 public:
  using Values = typename Memory::Values;

  // A sum that this worker holds. `values` is empty if none of its lanes had data.
  struct Subtree {
    comm::TreeNode place;
    std::optional<Values> values;
  };

  // `range` are the lanes that will be added, of `lanes` in all.
  LaneTree(Memory memory, LaneRange range, int64_t lanes)
      : memory_(std::move(memory)), range_(range), lanes_(lanes), next_lane_(range.begin) {
    TUTTI_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= lanes, "lanes {} to {} of {}",
                range.begin, range.end, lanes);
  }

  const LaneRange& range() const { return range_; }
  int64_t lanes_added() const { return next_lane_ - range_.begin; }

  // Adds the next lane, whose values are in the own memory. Afterwards its content is undefined.
  void add() { push(memory_.own()); }
  // Adds the next lane, which had no data.
  void skip() { push(std::nullopt); }

  // Forgets the lanes that were added in a step that was broken off.
  void reset() {
    next_lane_ = range_.begin;
    waiting_.clear();
  }

  // Returns the sums of the range, in lane order; if the range is all lanes, there is one, the root. The
  // values of the last sum are in the own memory, and those of any other sum i are where it has waited.
  // Afterwards the lanes of the next step may be added, which overwrites the values.
  std::vector<Subtree> finish() {
    TUTTI_CHECK(next_lane_ == range_.end, "lane {} of a range that ends at {}", next_lane_, range_.end);
    next_lane_ = range_.begin;
    std::vector<Subtree> sums = std::exchange(waiting_, {});
    if (!sums.empty()) move_to(memory_.own(), sums.back());
    return sums;
  }

 private:
  void push(std::optional<Values> values) {
    TUTTI_CHECK(next_lane_ < range_.end, "lane {} of a range that ends at {}", next_lane_, range_.end);
    waiting_.push_back({{0, next_lane_}, std::move(values)});
    const bool is_last = ++next_lane_ == range_.end;
    comm::join_complete(waiting_, 0, range_.begin, next_lane_, lanes_, [&](Subtree& left, Subtree& right) {
      // Addition commutes to the bit, so either may be added to the other: the result is where it stays.
      const bool to_right = right.values && is_last && memory_.is_own(*right.values);
      if (!left.values || to_right) std::swap(left.values, right.values);
      if (right.values) memory_.add(*left.values, *right.values);
    });
    Subtree& sum = waiting_.back();
    if (sum.values && !(is_last && memory_.is_own(*sum.values)))
      move_to(memory_.room(waiting_.size() - 1), sum);
  }

  void move_to(const Values& place, Subtree& sum) {
    if (!sum.values) return;
    memory_.copy(place, *sum.values);
    sum.values = place;
  }

  Memory memory_;
  const LaneRange range_;
  const int64_t lanes_;
  int64_t next_lane_;
  std::vector<Subtree> waiting_;
};

// Returns the places of the sums that LaneTree::finish() returns.
std::vector<comm::TreeNode> subtrees_of(const LaneRange& range, int64_t lanes);

}  // namespace tutti
