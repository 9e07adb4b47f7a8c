#include "tutti/step/tree_sum.h"

#include <utility>

#include <torch/utils.h>

#include "tutti/base/check.h"

namespace tutti {

TreeSum::TreeSum(Vectors vectors, LaneRange range, int64_t lanes, std::vector<Vectors> waiting_room)
    : vectors_(std::move(vectors)),
      range_(range),
      lanes_(lanes),
      next_lane_(range.begin),
      waiting_room_(std::move(waiting_room)) {
  TUTTI_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= lanes, "lanes {} to {} of {}",
              range.begin, range.end, lanes);
}

bool TreeSum::are_vectors(const Vectors& values) const {
  return !vectors_.empty() && values[0].is_same(vectors_[0]);
}

void TreeSum::copy_to(const Vectors& to, const Vectors& from) const {
  for (size_t i = 0; i < vectors_.size(); ++i) {
    if (!to[i].is_same(from[i])) to[i].copy_(from[i]);
  }
}

void TreeSum::push(std::optional<Vectors> values) {
  TUTTI_CHECK(next_lane_ < range_.end, "lane {} of a range that ends at {}", next_lane_, range_.end);
  const torch::NoGradGuard no_grad;
  waiting_.push_back({{0, next_lane_}, std::move(values)});
  const bool is_last = ++next_lane_ == range_.end;
  const auto join = [&](Subtree& left, Subtree& right) {
    // Addition commutes to the bit, so either may be added to the other: the result is where it stays.
    const bool to_right = right.values && is_last && are_vectors(*right.values);
    if (!left.values || to_right) std::swap(left.values, right.values);
    if (!right.values) return;
    for (size_t i = 0; i < vectors_.size(); ++i) (*left.values)[i].add_((*right.values)[i]);
  };
  comm::join_complete(waiting_, 0, range_.begin, next_lane_, lanes_, join);
  const size_t index = waiting_.size() - 1;
  Subtree& node = waiting_.back();
  if (!node.values || (is_last && are_vectors(*node.values))) return;
  while (waiting_room_.size() <= index) {
    waiting_room_.emplace_back();
    for (const torch::Tensor& vector : vectors_) waiting_room_.back().push_back(torch::empty_like(vector));
  }
  copy_to(waiting_room_[index], *node.values);
  node.values = waiting_room_[index];
}

void TreeSum::reset() {
  next_lane_ = range_.begin;
  waiting_.clear();
}

std::vector<TreeSum::Subtree> TreeSum::finish() {
  TUTTI_CHECK(next_lane_ == range_.end, "lane {} of a range that ends at {}", next_lane_, range_.end);
  const torch::NoGradGuard no_grad;
  next_lane_ = range_.begin;
  std::vector<Subtree> sums = std::exchange(waiting_, {});
  if (sums.empty() || !sums.back().values) return sums;
  copy_to(vectors_, *sums.back().values);
  sums.back().values = vectors_;
  return sums;
}

}  // namespace tutti
