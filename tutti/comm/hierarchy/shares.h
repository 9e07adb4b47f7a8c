#pragma once

#include <vector>

#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// Which rank moves which elements of an operation between hosts. Each rank owns a stretch of elements, and so
// each host owns a contiguous range. The range of a host is split among the ranks of every other host: each
// of them handles one share, and communicates only with the owners whose stretches overlap it. If both hosts
// have the same number of ranks, that is one owner.
class Shares {
 public:
  // `own` has the stretches of all ranks, in order and without gaps. The layout must outlive this object.
  Shares(const RankLayout& layout, std::vector<Slice> own) : layout_(layout), own_(std::move(own)) {}

  const Slice& own(int rank) const { return own_[static_cast<size_t>(rank)]; }
  // Returns the part of the owner's stretch that `rank` handles. Within a host, a rank handles only its own.
  Slice between(int rank, int owner) const;

 private:
  Slice seen_to(int rank, int host) const;

  const RankLayout& layout_;
  const std::vector<Slice> own_;
};

// Splits `count` elements equally among the hosts, whatever number of ranks they have, and the part of each
// host equally among its ranks.
std::vector<Slice> even_stretches(const RankLayout& layout, int64_t count);

// Returns consecutive stretches of these lengths.
std::vector<Slice> stretches_of(const std::vector<int64_t>& lengths);

}  // namespace tutti::comm
