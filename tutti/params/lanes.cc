#include "tutti/params/lanes.h"

#include <algorithm>
#include <utility>

#include <torch/utils.h>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/mix_bits.h"

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

std::vector<LaneRange> blocks_of(int world, int64_t lanes) {
  std::vector<LaneRange> blocks;
  for (int rank = 0; rank < world; ++rank) blocks.push_back(lanes_of(rank, world, lanes));
  return blocks;
}

uint64_t lane_seed(int64_t seed, int64_t step, int64_t lane) {
  uint64_t mixed = mix_bits(static_cast<uint64_t>(seed) + kGoldenBits);
  mixed = mix_bits(mixed + static_cast<uint64_t>(step) + kGoldenBits);
  return mix_bits(mixed + static_cast<uint64_t>(lane) + kGoldenBits);
}

TreeSum::TreeSum(Vectors vectors, LaneRange block, int64_t lanes)
    : vectors_(std::move(vectors)), block_(block), lanes_(lanes), next_lane_(block.begin) {
  TUTTI_CHECK(0 <= block.begin && block.begin <= block.end && block.end <= lanes, "lanes {} to {} of {}",
              block.begin, block.end, lanes);
}

void TreeSum::push(Subtree node) {
  TUTTI_CHECK(next_lane_ < block_.end, "lane {} of a block that ends at {}", next_lane_, block_.end);
  const torch::NoGradGuard no_grad;
  for (;;) {
    const auto move = next_move(node.place, waiting_.empty() ? nullptr : &waiting_.back().place, lanes_);
    if (move == comm::Move::Stay) break;
    if (move == comm::Move::JoinAndRise) {
      Subtree left = std::move(waiting_.back());
      waiting_.pop_back();
      if (left.values && node.values) {
        // Addition commutes to the bit, so the left sum may be added into the right one.
        for (size_t i = 0; i < vectors_.size(); ++i) (*node.values)[i].add_((*left.values)[i]);
        spare_.push_back(std::move(*left.values));
      } else if (left.values) {
        node.values = std::move(left.values);
      }
    }
    node.place = parent_of(node.place);
  }
  ++next_lane_;
  const bool in_vectors = node.values && !vectors_.empty() && (*node.values)[0].is_same(vectors_[0]);
  if (in_vectors && next_lane_ < block_.end) node.values = copy_of_vectors();
  waiting_.push_back(std::move(node));
}

void TreeSum::reset() {
  next_lane_ = block_.begin;
  waiting_.clear();
}

TreeSum::Vectors TreeSum::copy_of_vectors() {
  Vectors copy;
  if (!spare_.empty()) {
    copy = std::move(spare_.back());
    spare_.pop_back();
    for (size_t i = 0; i < vectors_.size(); ++i) copy[i].copy_(vectors_[i]);
  } else {
    for (const torch::Tensor& vector : vectors_) copy.push_back(vector.clone());
  }
  return copy;
}

std::vector<TreeSum::Subtree> TreeSum::finish() {
  TUTTI_CHECK(next_lane_ == block_.end, "lane {} of a block that ends at {}", next_lane_, block_.end);
  next_lane_ = block_.begin;
  std::vector<Subtree> sums = std::exchange(waiting_, {});
  if (sums.empty() || !sums.back().values) return sums;
  Vectors& last = *sums.back().values;
  if (!vectors_.empty() && !last[0].is_same(vectors_[0])) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < vectors_.size(); ++i) vectors_[i].copy_(last[i]);
    spare_.push_back(std::exchange(last, vectors_));
  }
  return sums;
}

}  // namespace tutti
