#pragma once

#include <vector>

#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// Who moves which elements of an operation between hosts. Each rank owns a stretch of them, so that each host
// owns a run. What a host owns is split among the ranks of every other host: each sees to its share, and so
// deals with those owners alone whose stretches it overlaps; where both hosts have equally many ranks, with
// one.
class Shares {
 public:
  // The stretches of all ranks, one behind the other. The placement outlives this.
  Shares(const Placement& placement, std::vector<Slice> own) : placement_(placement), own_(std::move(own)) {}

  const Slice& own(int rank) const { return own_[static_cast<size_t>(rank)]; }
  // Of what the owner owns, what this rank sees to; of its own host's, what is its own.
  Slice between(int rank, int owner) const;

 private:
  Slice seen_to(int rank, int host) const;

  const Placement& placement_;
  const std::vector<Slice> own_;
};

inline int64_t length(const Slice& slice) { return slice.end - slice.begin; }

// Of so many elements every host owns an equal part, whatever number of ranks it has, and each of them an
// equal share.
std::vector<Slice> even_stretches(const Placement& placement, int64_t count);

// Stretches of these lengths, one behind the other.
std::vector<Slice> stretches_of(const std::vector<int64_t>& lengths);

}  // namespace tutti::comm
