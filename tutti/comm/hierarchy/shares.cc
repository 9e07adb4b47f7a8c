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
  const int own_host = layout_.host_of(rank);
  const int local = layout_.local_rank(rank);
  const int first = layout_.first(host);
  const int size = layout_.size(host);
  if (layout_.size(own_host) == size) return own(first + local);
  const Slice run{own(first).begin, own(first + size - 1).end};
  return shifted(slice_of(run.size(), local, layout_.size(own_host)), run.begin);
}

Slice Shares::between(int rank, int owner) const {
  const int host = layout_.host_of(owner);
  if (layout_.host_of(rank) == host)
    return rank == owner ? own(owner) : Slice{own(owner).begin, own(owner).begin};
  return overlap(seen_to(rank, host), own(owner));
}

std::vector<Slice> even_stretches(const RankLayout& layout, int64_t count) {
  std::vector<Slice> stretches;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const int host = layout.host_of(rank);
    const Slice part = slice_of(count, host, layout.hosts());
    stretches.push_back(
        shifted(slice_of(part.size(), layout.local_rank(rank), layout.size(host)), part.begin));
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
