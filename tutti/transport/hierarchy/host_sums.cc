#include "tutti/transport/hierarchy/host_sums.h"

#include <algorithm>
#include <utility>

namespace tutti::comm {
namespace {

size_t size_of(int64_t elements, const Reduction& reduction) {
  return static_cast<size_t>(elements) * size_of(reduction.type);
}

ElementRange shifted(const ElementRange& slice, int64_t by) { return {slice.begin + by, slice.end + by}; }

ElementRange overlap(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

ElementRange Shares::seen_to(int rank, int host) const {
  const int own_host = layout_.host_of(rank);
  const int local = layout_.local_rank(rank);
  const int first = layout_.first(host);
  const int size = layout_.size(host);
  if (layout_.size(own_host) == size) return own(first + local);
  const ElementRange run{own(first).begin, own(first + size - 1).end};
  return shifted(slice_of(run.size(), local, layout_.size(own_host)), run.begin);
}

ElementRange Shares::between(int rank, int owner) const {
  const int host = layout_.host_of(owner);
  if (layout_.host_of(rank) == host)
    return rank == owner ? own(owner) : ElementRange{own(owner).begin, own(owner).begin};
  return overlap(seen_to(rank, host), own(owner));
}

std::vector<ElementRange> slices_by_host(const RankLayout& layout, int64_t count) {
  std::vector<ElementRange> slices;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const int host = layout.host_of(rank);
    const ElementRange part = slice_of(count, host, layout.hosts());
    slices.push_back(shifted(slice_of(part.size(), layout.local_rank(rank), layout.size(host)), part.begin));
  }
  return slices;
}

std::vector<ElementRange> slices_of_lengths(const std::vector<int64_t>& lengths) {
  std::vector<ElementRange> slices;
  int64_t end = 0;
  for (const int64_t length : lengths) {
    slices.push_back({end, end + length});
    end += length;
  }
  return slices;
}

std::vector<int> ranks_of(const RankLayout& layout, int host) {
  std::vector<int> ranks;
  for (int i = 0; i < layout.size(host); ++i) ranks.push_back(layout.first(host) + i);
  return ranks;
}

HostSums::HostSums(const RankLayout& layout, int rank, const Sources& sources)
    : layout_(layout), rank_(rank), sources_(sources) {
  const std::span<const Source> all = sources.all;
  size_t end = 0;
  for (int host = 0; host < layout.hosts(); ++host) {
    const size_t first = end;
    while (end < all.size() && layout.host_of(all[end].rank) == host) ++end;
    std::vector<Root> roots = roots_of(all.subspan(first, end - first), sources.leaves);
    branches_.push_back(0);
    for (const Root& root : roots) {
      all_.push_back({root.place, layout.first(host), !root.program.empty()});
      branches_.back() += all_.back().present ? 1 : 0;
    }
    if (host != layout.host_of(rank)) continue;
    first_ = first;
    end_ = end;
    own_ = std::move(roots);
  }
  tree_ = sources_of(all_, sources.leaves).program;
}

std::vector<const std::byte*> HostSums::own_inputs(std::span<const Array> inputs) const {
  std::vector<const std::byte*> places;
  for (size_t s = first_; s < end_; ++s) places.push_back(inputs[s].data);
  return places;
}

void HostSums::add_branches(std::span<const std::byte* const> inputs, const Reduction& reduction,
                            std::byte* to) const {
  Reduction partial = reduction;
  partial.divisor = 0;
  if (reduction.op == ReduceOp::Average) partial.op = ReduceOp::Sum;
  for (const Root& branch : own_) {
    if (branch.program.empty()) continue;
    reduce(inputs, {&to, 1}, partial, branch.program);
    to += size_of(reduction.count, reduction);
  }
}

// If hosts have different numbers of ranks, their shares end at different elements.
void HostSums::add_own(const Shares& shares, std::span<const std::byte* const> sums,
                       const Reduction& reduction, std::byte* to) const {
  const ElementRange own = shares.own(rank_);
  for (int64_t begin = own.begin, end = own.end; begin < own.end; begin = end, end = own.end) {
    std::vector<const std::byte*> inputs(static_cast<size_t>(layout_.hosts()));
    std::vector<size_t> strides(inputs.size());
    for (int rank = 0; rank < layout_.world(); ++rank) {
      const ElementRange share = shares.between(rank, rank_);
      if (begin < share.begin || begin >= share.end) continue;
      end = std::min(end, share.end);
      const auto host = static_cast<size_t>(layout_.host_of(rank));
      inputs[host] = sums[static_cast<size_t>(rank)] + size_of(begin - share.begin, reduction);
      strides[host] = size_of(share.size(), reduction);
    }
    Reduction part = reduction;
    part.count = end - begin;
    add_up(inputs, strides, part, to + size_of(begin - own.begin, reduction));
  }
}

void HostSums::add_all(std::span<const std::byte* const> sums, const Reduction& reduction,
                       std::byte* to) const {
  const std::vector<size_t> strides(sums.size(), size_of(reduction.count, reduction));
  add_up({sums.begin(), sums.end()}, strides, reduction, to);
}

// `next` is by host: the sum of its first branch; `strides` are the bytes from one branch to the next.
void HostSums::add_up(std::vector<const std::byte*> next, const std::vector<size_t>& strides,
                      Reduction reduction, std::byte* to) const {
  if (reduction.parts == 0) reduction.parts = static_cast<int64_t>(sources_.all.size());
  std::vector<const std::byte*> inputs;
  for (const Source& branch : all_) {
    const auto host = static_cast<size_t>(layout_.host_of(branch.rank));
    inputs.push_back(branch.present ? next[host] : nullptr);
    if (branch.present) next[host] += strides[host];
  }
  reduce(inputs, {&to, 1}, reduction, tree_);
}

}  // namespace tutti::comm
