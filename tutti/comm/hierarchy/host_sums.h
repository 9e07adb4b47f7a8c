#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/comm/hierarchy/shares.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// The one tree over all ranks, taken apart at the hosts: what the ranks of a host add are whole branches of
// it, one where its ranks lie well in the tree and a few where not; their sums lie one behind the other. What
// is added here is in the type of sums (widen.h).
class HostSums {
 public:
  // Of the host of this rank. The placement outlives this.
  HostSums(const Placement& placement, int rank);

  // How many the host of a rank has.
  size_t branches(int rank) const { return branches_[static_cast<size_t>(placement_.host_of(rank))]; }

  // The sums of this host's branches, from what each of its ranks has; nothing is divided yet.
  void add_branches(std::span<const std::byte* const> inputs, const Reduction& reduction,
                    std::byte* to) const;
  // The result for what is this rank's own, from the sums of the branches: those of which each rank has sent
  // its share.
  void add_own(const Shares& shares, std::span<const std::byte* const> sums, const Reduction& reduction,
               std::byte* to) const;
  // The result, from the sums of the branches of each host.
  void add_all(std::span<const std::byte* const> sums, const Reduction& reduction, std::byte* to) const;

 private:
  const Placement& placement_;
  const int rank_;
  const std::vector<Root> own_;   // branches
  std::vector<size_t> branches_;  // by host
  Program tree_;                  // over the branches of all hosts
};

// Those of a host.
std::vector<int> ranks_of(const Placement& placement, int host);

}  // namespace tutti::comm
