#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/comm/hierarchy/shares.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// The one tree over all ranks, split up by host: the ranks of a host add whole branches of it. A host has one
// branch if its ranks are well aligned in the tree, else a few; the sums of its branches are stored one after
// the other. All values here have the type in which elements are added (widen.h).
class HostSums {
 public:
  // For this rank and its host. The layout must outlive this object.
  HostSums(const RankLayout& layout, int rank);

  // Returns the number of branches of the rank's host.
  size_t branches(int rank) const { return branches_[static_cast<size_t>(layout_.host_of(rank))]; }

  // Computes the sums of this host's branches from the inputs of its ranks. Does not divide for averages yet.
  void add_branches(std::span<const std::byte* const> inputs, const Reduction& reduction,
                    std::byte* to) const;
  // Computes the result for this rank's own elements from the sums of the branches. `sums` is indexed by rank
  // and has the share that each rank has sent.
  void add_own(const Shares& shares, std::span<const std::byte* const> sums, const Reduction& reduction,
               std::byte* to) const;
  // Computes the result from the sums of the branches; `sums` is indexed by host.
  void add_all(std::span<const std::byte* const> sums, const Reduction& reduction, std::byte* to) const;

 private:
  const RankLayout& layout_;
  const int rank_;
  const std::vector<Root> own_;   // the branches of this host
  std::vector<size_t> branches_;  // by host: their number
  Program tree_;                  // over the branches of all hosts
};

// Returns the ranks of a host.
std::vector<int> ranks_of(const RankLayout& layout, int host);

}  // namespace tutti::comm
