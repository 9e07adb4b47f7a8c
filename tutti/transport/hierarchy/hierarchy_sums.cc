#include <algorithm>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/transport/hierarchy/hierarchy.h"

// The part of HierarchyTransport that adds.
namespace tutti::comm {
namespace {

// Up to this size, a second message takes longer than sending the bytes that it would save.
constexpr size_t kSmall = size_t{8} << 10;

// Returns the reduction of the values that are sent: half precision is rounded only at the end, unless it is
// rounded each time.
Reduction widened(Reduction reduction) {
  if (!reduction.round_each) reduction.type = sum_type(reduction.type);
  return reduction;
}

}  // namespace

// Returns into how many chunks every slice is cut, so that all inputs of a rank fit into half of the memory.
// slice_of() rounds the end of each chunk to at most kUnit elements.
int HierarchyTransport::chunks_in(const ArraySum& sum, const Reduction& wide, int world) {
  constexpr int64_t kUnit = 64;
  std::vector<int64_t> inputs(static_cast<size_t>(world));
  for (const Source& source : sum.sources->all) inputs[static_cast<size_t>(source.rank)] += source.present;
  const int64_t most = std::max<int64_t>(1, *std::max_element(inputs.begin(), inputs.end()));
  const auto room = static_cast<int64_t>(kHalf / size_of(wide.type)) / most - kUnit * world;
  TUTTI_CHECK(room > 0, "{} inputs of each of {} ranks", most, world);
  return static_cast<int>((sum.reduction.count + kUnit * world + room - 1) / room);
}

void HierarchyTransport::combine(std::span<const ArraySum> sums, const Operation& asked) {
  for (const ArraySum& sum : sums) {
    const Operation operation = with_whole(asked, sum.reduction);
    const auto watched = watch(operation);
    combine_one(sum, operation);
  }
}

// Inputs that the ranks of a host share are added where they are, and all others from the halves. Within a
// host, whoever reads an element of shared inputs also writes its result, so that no rank has to wait before
// it writes.
void HierarchyTransport::combine_one(const ArraySum& sum, const Operation& operation) {
  const HostSums sums(layout_, rank_, *sum.sources);
  const Reduction wide = widened(sum.reduction);
  const bool shared = sum.shared && wide.type == sum.reduction.type;
  const size_t element = size_of(sum.reduction.type);
  const std::vector<ElementRange> slices =
      sum.scatters() ? sum.slices : slices_by_host(layout_, sum.reduction.count);
  const bool small = !sum.scatters() && static_cast<size_t>(sum.reduction.count) * element <= kSmall;
  const int chunks = small ? 1 : chunks_in(sum, wide, world_);
  for (int i = 0; i < chunks; ++i) {
    const Chunk chunk = chunk_of(sum, slices, i, chunks);
    const Inputs inputs = shared ? Inputs{sums.own_inputs(sum.inputs), chunk.begins}
                                 : copy_in(sum, sums, wide, chunk, operation);
    if (small) {
      const std::byte* const result = add_small(sums, inputs, wide, operation);
      if (shared) group_->sync(operation);  // other ranks may still read what is overwritten now
      convert(result, wide.type, sum.outputs[0].data, sum.reduction.type, sum.reduction.count);
      return;
    }
    std::byte* const own = chunk.places[static_cast<size_t>(rank_)];
    const int64_t length = chunk.shares.own(rank_).size();
    std::byte* const to = wide.type == sum.reduction.type
                              ? own
                              : sum_.at_least(static_cast<size_t>(length) * size_of(wide.type));
    add(sums, inputs, chunk.shares, wide, to, operation);
    convert(to, wide.type, own, sum.reduction.type, length);
    if (sum.scatters()) continue;
    shared ? write_to_all(sum, chunk, operation)
           : hand_out(chunk.shares, element, own, chunk.places, operation);
  }
  if (shared) group_->sync(operation);
}

HierarchyTransport::Chunk HierarchyTransport::chunk_of(const ArraySum& sum,
                                                       const std::vector<ElementRange>& slices, int index,
                                                       int chunks) const {
  const size_t element = size_of(sum.reduction.type);
  std::vector<int64_t> lengths;
  std::vector<int64_t> begins;
  std::vector<std::byte*> places;
  for (const ElementRange& slice : slices) {
    const ElementRange chunk = slice_of(slice.size(), index, chunks);
    lengths.push_back(chunk.size());
    begins.push_back(slice.begin + chunk.begin);
    places.push_back(sum.outputs[0].data +
                     static_cast<size_t>(sum.scatters() ? chunk.begin : begins.back()) * element);
  }
  return {Shares(layout_, slices_of_lengths(lengths)), std::move(begins), std::move(places)};
}

// Each rank copies its inputs into its half, the chunks of all ranks one after the other; all meet.
HierarchyTransport::Inputs HierarchyTransport::copy_in(const ArraySum& sum, const HostSums& sums,
                                                       const Reduction& wide, const Chunk& chunk,
                                                       const Operation& operation) {
  const Halves halves = next_halves();
  const size_t element = size_of(wide.type);
  Inputs inputs;
  for (int r = 0; r < world_; ++r) inputs.begins.push_back(chunk.shares.own(r).begin);
  {
    const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
    std::vector<size_t> used(halves.size());
    for (size_t s = sums.first_source(); s < sums.end_of_sources(); ++s) {
      const Source& source = sum.sources->all[s];
      const auto local = static_cast<size_t>(layout_.local_rank(source.rank));
      std::byte* const place = halves[local] + used[local];
      inputs.places.push_back(place);
      if (!source.present) continue;
      used[local] += static_cast<size_t>(chunk.shares.own(world_ - 1).end) * element;
      if (source.rank != rank_) continue;
      const std::byte* const from = sum.inputs[s].data;
      for (int r = 0; r < world_; ++r) {
        const ElementRange& own = chunk.shares.own(r);
        const int64_t begin = chunk.begins[static_cast<size_t>(r)];
        convert(from + static_cast<size_t>(begin) * size_of(sum.reduction.type), sum.reduction.type,
                place + static_cast<size_t>(own.begin) * element, wide.type, own.size());
      }
    }
  }
  group_->sync(operation);
  return inputs;
}

// Computes the sum of this rank's own slice.
void HierarchyTransport::add(const HostSums& sums, const Inputs& inputs, const Shares& shares,
                             const Reduction& reduction, std::byte* to, const Operation& operation) {
  const size_t element = size_of(reduction.type);
  const auto ranks = static_cast<size_t>(world_);
  const auto size_between = [&](int rank, int owner) {
    return static_cast<size_t>(shares.between(rank, owner).size()) * sums.branches(rank) * element;
  };
  size_t to_send = 0;
  size_t to_receive = 0;
  for (int r = 0; r < world_; ++r) {
    to_send += size_between(rank_, r);
    to_receive += size_between(r, rank_);
  }
  std::byte* out = sends_.at_least(to_send);
  std::byte* in = recvs_.at_least(to_receive);
  std::vector<ConstBytes> sends(ranks);
  std::vector<Bytes> recvs(ranks);
  std::vector<const std::byte*> of_branches(ranks);
  {
    const SpanScope span(operation.timeline, Activity::Reduce, "add inside the host", operation.step);
    for (int rank = 0; rank < world_; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const ElementRange share = shares.between(rank_, rank);
      const int64_t begin = inputs.begins[r] + share.begin - shares.own(rank).begin;
      std::vector<const std::byte*> here = inputs.places;
      for (const std::byte*& place : here) place += static_cast<size_t>(begin) * element;
      Reduction part = reduction;
      part.count = share.size();
      sums.add_branches(here, part, out);
      of_branches[r] = out;
      if (!is_here(rank)) {
        sends[r] = {out, size_between(rank_, rank)};
        recvs[r] = {in, size_between(rank, rank_)};
        of_branches[r] = in;
        in += recvs[r].size();
      }
      out += size_between(rank_, rank);
    }
  }
  network_->exchange(sends, recvs, operation);
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  sums.add_own(shares, of_branches, reduction, to);
}

// Computes the whole sum at every rank: sends more bytes than necessary, but needs only one message. Each
// rank receives the sums of another host from one of the ranks there.
const std::byte* HierarchyTransport::add_small(const HostSums& sums, const Inputs& inputs,
                                               const Reduction& reduction, const Operation& operation) {
  const size_t size = static_cast<size_t>(reduction.count) * size_of(reduction.type);
  const auto giver = [&](int host, int to) {
    return layout_.first(host) + layout_.local_rank(to) % layout_.size(host);
  };
  std::byte* const out = sends_.at_least(sums.branches(rank_) * size);
  std::byte* in = recvs_.at_least(sums.all_branches() * size);
  std::vector<ConstBytes> sends(static_cast<size_t>(world_));
  std::vector<Bytes> recvs(static_cast<size_t>(world_));
  std::vector<const std::byte*> of_branches;
  sums.add_branches(inputs.places, reduction, out);
  for (int host = 0; host < layout_.hosts(); ++host) {
    of_branches.push_back(host == host_ ? out : in);
    if (host == host_) continue;
    const int rank = giver(host, rank_);
    recvs[static_cast<size_t>(rank)] = {in, sums.branches(rank) * size};
    in += sums.branches(rank) * size;
    for (const int to : ranks_of(layout_, host)) {
      if (giver(host_, to) == rank_) sends[static_cast<size_t>(to)] = {out, sums.branches(rank_) * size};
    }
  }
  network_->exchange(sends, recvs, operation);
  std::byte* const sum = sum_.at_least(size);
  sums.add_all(of_branches, reduction, sum);
  return sum;
}

// Gets this rank's shares of the sum from the other hosts, and writes all that it has to all ranks of its
// host.
void HierarchyTransport::write_to_all(const ArraySum& sum, const Chunk& chunk, const Operation& operation) {
  const size_t element = size_of(sum.reduction.type);
  const std::byte* const output = sum.outputs[0].data;
  between_hosts(chunk.shares, element, chunk.places[static_cast<size_t>(rank_)], chunk.places, operation);
  const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
  for (int owner = 0; owner < world_; ++owner) {
    const ElementRange share = chunk.shares.between(rank_, owner);
    const std::byte* const from = chunk.places[static_cast<size_t>(owner)] +
                                  static_cast<size_t>(share.begin - chunk.shares.own(owner).begin) * element;
    for (size_t other = 1; other < sum.outputs.size(); ++other)
      std::copy_n(from, static_cast<size_t>(share.size()) * element,
                  sum.outputs[other].data + (from - output));
  }
}

}  // namespace tutti::comm
