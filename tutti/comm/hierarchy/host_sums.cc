#include "tutti/comm/hierarchy/host_sums.h"

#include <algorithm>

namespace tutti::comm {
namespace {

std::vector<Root> branches_of(const RankLayout& layout, int host) {
  std::vector<Node> leaves;
  for (const int rank : ranks_of(layout, host)) leaves.push_back({{0, rank}, true});
  return roots_of(leaves, layout.world());
}

size_t size_of(int64_t elements, const Reduction& reduction) {
  return static_cast<size_t>(elements) * c10::elementSize(reduction.type);
}

}  // namespace

std::vector<int> ranks_of(const RankLayout& layout, int host) {
  std::vector<int> ranks;
  for (int i = 0; i < layout.size(host); ++i) ranks.push_back(layout.first(host) + i);
  return ranks;
}

HostSums::HostSums(const RankLayout& layout, int rank)
    : layout_(layout), rank_(rank), own_(branches_of(layout, layout.host_of(rank))) {
  std::vector<Node> nodes;
  for (int host = 0; host < layout.hosts(); ++host) {
    const auto branches = branches_of(layout, host);
    for (const Root& branch : branches) nodes.push_back({branch.place, true});
    branches_.push_back(branches.size());
  }
  tree_ = program_of(nodes, layout.world());
}

void HostSums::add_branches(std::span<const std::byte* const> inputs, const Reduction& reduction,
                            std::byte* to) const {
  const ReduceOp op = reduction.op == ReduceOp::Average ? ReduceOp::Sum : reduction.op;
  for (const Root& branch : own_) {
    reduce(inputs, {&to, 1}, {reduction.type, op, reduction.count}, branch.program);
    to += size_of(reduction.count, reduction);
  }
}

// If hosts have different numbers of ranks, their shares end at different elements.
void HostSums::add_own(const Shares& shares, std::span<const std::byte* const> sums,
                       const Reduction& reduction, std::byte* to) const {
  const Slice own = shares.own(rank_);
  for (int64_t begin = own.begin, end = own.end; begin < own.end; begin = end, end = own.end) {
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < layout_.world(); ++rank) {
      const Slice share = shares.between(rank, rank_);
      if (begin < share.begin || begin >= share.end) continue;
      end = std::min(end, share.end);
      const std::byte* input = sums[static_cast<size_t>(rank)] + size_of(begin - share.begin, reduction);
      for (size_t i = 0; i < branches(rank); ++i, input += size_of(share.size(), reduction))
        inputs.push_back(input);
    }
    std::byte* const here = to + size_of(begin - own.begin, reduction);
    reduce(inputs, {&here, 1}, {reduction.type, reduction.op, end - begin, 0, layout_.world()}, tree_);
  }
}

void HostSums::add_all(std::span<const std::byte* const> sums, const Reduction& reduction,
                       std::byte* to) const {
  std::vector<const std::byte*> inputs;
  for (int host = 0; host < layout_.hosts(); ++host) {
    const std::byte* input = sums[static_cast<size_t>(host)];
    for (size_t i = 0; i < branches_[static_cast<size_t>(host)];
         ++i, input += size_of(reduction.count, reduction))
      inputs.push_back(input);
  }
  reduce(inputs, {&to, 1}, {reduction.type, reduction.op, reduction.count, 0, layout_.world()}, tree_);
}

}  // namespace tutti::comm
