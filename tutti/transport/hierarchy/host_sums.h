#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tutti/transport/rank_layout.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {

// Which rank moves which elements of an operation between hosts. Each rank owns a slice of elements, and so
// each host owns a contiguous range. The range of a host is split among the ranks of every other host: each
// of them handles one share, and communicates only with the owners whose slices overlap it. If both hosts
// have the same number of ranks, that is one owner.
class Shares {
 public:
  // `own` has the slices of all ranks, in order and without gaps. The layout must outlive this object.
  Shares(const RankLayout& layout, std::vector<ElementRange> own) : layout_(layout), own_(std::move(own)) {}

  const ElementRange& own(int rank) const { return own_[static_cast<size_t>(rank)]; }
  // Returns the part of the owner's slice that `rank` handles. Within a host, a rank handles only its own.
  ElementRange between(int rank, int owner) const;

 private:
  ElementRange seen_to(int rank, int host) const;

  const RankLayout& layout_;
  const std::vector<ElementRange> own_;
};

// Splits `count` elements equally among the hosts, whatever number of ranks they have, and the part of each
// host equally among its ranks.
std::vector<ElementRange> slices_by_host(const RankLayout& layout, int64_t count);

// Returns consecutive slices of these lengths.
std::vector<ElementRange> slices_of_lengths(const std::vector<int64_t>& lengths);

// The tree of a sum, split up by host: the ranks of a host add whole branches of it. A host has one branch if
// its sources are well aligned in the tree, else a few; the sums of its branches are stored one after the
// other, without those that have no value. All values here have the type in which elements are added.
class HostSums {
 public:
  // For this rank and its host. All arguments must outlive this object.
  HostSums(const RankLayout& layout, int rank, const Sources& sources);

  // Returns the number of branches of the rank's host that have a value.
  size_t branches(int rank) const { return branches_[static_cast<size_t>(layout_.host_of(rank))]; }
  // Returns the number of branches of all hosts.
  size_t all_branches() const { return all_.size(); }
  // Returns the sources of this host, as a range of all sources.
  size_t first_source() const { return first_; }
  size_t end_of_sources() const { return end_; }
  // Returns the addresses of their inputs.
  std::vector<const std::byte*> own_inputs(std::span<const Array> inputs) const;

  // Computes the sums of this host's branches from the inputs of its sources. Does not divide yet.
  void add_branches(std::span<const std::byte* const> inputs, const Reduction& reduction,
                    std::byte* to) const;
  // Computes the result for this rank's own elements from the sums of the branches. `sums` is indexed by rank
  // and has the share that each rank has sent.
  void add_own(const Shares& shares, std::span<const std::byte* const> sums, const Reduction& reduction,
               std::byte* to) const;
  // Computes the result from the sums of the branches; `sums` is indexed by host.
  void add_all(std::span<const std::byte* const> sums, const Reduction& reduction, std::byte* to) const;

 private:
  void add_up(std::vector<const std::byte*> next, const std::vector<size_t>& strides, Reduction reduction,
              std::byte* to) const;

  const RankLayout& layout_;
  const int rank_;
  const Sources& sources_;
  size_t first_ = 0;
  size_t end_ = 0;
  std::vector<Root> own_;         // the branches of this host
  std::vector<Source> all_;       // the branches of all hosts, with the first rank of each
  std::vector<size_t> branches_;  // by host: the number of those that have a value
  Program tree_;                  // over all branches
};

// Returns the ranks of a host.
std::vector<int> ranks_of(const RankLayout& layout, int host);

}  // namespace tutti::comm
