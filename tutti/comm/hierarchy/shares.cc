#include "tutti/comm/hierarchy/shares.h"

#include <algorithm>

namespace tutti::comm {
namespace {

Slice shifted(const Slice& slice, int64_t by) { return {slice.begin + by, slice.end + by}; }

Slice overlap(const Slice& a, const Slice& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

Slice Shares::seen_to(int rank, int host) const {
  const int own_host = placement_.host_of(rank);
  const int local = placement_.local_rank(rank);
  const int first = placement_.first(host);
  const int size = placement_.size(host);
  if (placement_.size(own_host) == size) return own(first + local);
  const Slice run{own(first).begin, own(first + size - 1).end};
  return shifted(slice_of(run.size(), local, placement_.size(own_host)), run.begin);
}

Slice Shares::between(int rank, int owner) const {
  const int host = placement_.host_of(owner);
  if (placement_.host_of(rank) == host)
    return rank == owner ? own(owner) : Slice{own(owner).begin, own(owner).begin};
  return overlap(seen_to(rank, host), own(owner));
}

std::vector<Slice> even_stretches(const Placement& placement, int64_t count) {
  std::vector<Slice> stretches;
  for (int rank = 0; rank < placement.world(); ++rank) {
    const int host = placement.host_of(rank);
    const Slice part = slice_of(count, host, placement.hosts());
    stretches.push_back(
        shifted(slice_of(part.size(), placement.local_rank(rank), placement.size(host)), part.begin));
  }
  return stretches;
}

std::vector<Slice> stretches_of(const std::vector<int64_t>& lengths) {
  std::vector<Slice> stretches;
  int64_t end = 0;
  for (const int64_t length : lengths) {
    stretches.push_back({end, end + length});
    end += length;
  }
  return stretches;
}

}  // namespace tutti::comm
