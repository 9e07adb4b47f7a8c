#include "tutti/transport/hierarchy/hierarchy.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/base/check.h"

namespace tutti::comm {
namespace {

Failures& failures_of(Transport& network) {
  Failures* const failures = network.failures();
  TUTTI_CHECK(failures != nullptr, "{} has no Failures", network.name());
  return *failures;
}

}  // namespace

// Allocates the region before any rank has the group: if a group failed once some ranks had it, the ranks
// that are still making it would fail as well.
SharedRegion HierarchyTransport::make_region(Transport& memory, Failures& failures,
                                             std::chrono::milliseconds timeout) {
  try {
    return memory.shared_regions()->allocate(2 * kHalf, operation_of("connect", {}, timeout));
  } catch (const Error& error) {
    failures.report(error.kind(), error.what());
  }
}

HierarchyTransport::HierarchyTransport(std::unique_ptr<Transport> network, std::unique_ptr<Transport> memory,
                                       RankLayout layout, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      layout_(std::move(layout)),
      rank_(network->rank()),
      world_(network->world()),
      host_(layout_.host_of(rank_)),
      local_(layout_.local_rank(rank_)),
      network_(std::move(network)),
      failures_(failures_of(*network_)),
      region_(make_region(*memory, failures_, timeout_)),
      group_(std::move(memory)) {
  group_->shared_regions()->join(failures_, ranks_of(layout_, host_));
  TUTTI_CHECK(group_->rank() == local_ && group_->world() == layout_.size(host_), "rank {} is rank {} of {}",
              rank_, group_->rank(), group_->world());
}

HierarchyTransport::Halves HierarchyTransport::next_halves() {
  Halves halves = region_.parts;
  for (std::byte*& half : halves) half += (uses_ % 2) * kHalf;
  ++uses_;
  return halves;
}

// Registers one operation with the failures of all hosts. Its steps inside the host and over the network
// count as parts of it, so that they know of every rank that waits in any of them.
Failures::Watch HierarchyTransport::watch(const Operation& operation) {
  std::vector<int> others;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) others.push_back(r);
  }
  return failures_.watch(operation, Failures::Party::All, std::move(others));
}

void HierarchyTransport::exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                                  const Operation& operation) {
  std::vector<ConstBytes> sends_here;
  std::vector<Bytes> recvs_here;
  std::vector<ConstBytes> sends_there(sends.begin(), sends.end());
  std::vector<Bytes> recvs_there(recvs.begin(), recvs.end());
  for (const int rank : ranks_of(layout_, host_)) {
    const auto r = static_cast<size_t>(rank);
    sends_here.push_back(std::exchange(sends_there[r], {}));
    recvs_here.push_back(std::exchange(recvs_there[r], {}));
  }
  const auto watched = watch(operation);
  if (group_->world() > 1) group_->exchange(sends_here, recvs_here, operation);
  network_->exchange(sends_there, recvs_there, operation);
}

void HierarchyTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  is_here(to) ? group_->send(bytes, layout_.local_rank(to), operation) : network_->send(bytes, to, operation);
}

void HierarchyTransport::recv(Bytes bytes, int from, const Operation& operation) {
  is_here(from) ? group_->recv(bytes, layout_.local_rank(from), operation)
                : network_->recv(bytes, from, operation);
}

OperationLabel HierarchyTransport::await_message(int from, const Operation& operation) {
  return is_here(from) ? group_->await_message(layout_.local_rank(from), operation)
                       : network_->await_message(from, operation);
}

std::optional<OperationLabel> HierarchyTransport::next_message(int from) {
  return is_here(from) ? group_->next_message(layout_.local_rank(from)) : network_->next_message(from);
}

bool HierarchyTransport::has_left(int rank) {
  return is_here(rank) ? group_->has_left(layout_.local_rank(rank)) : network_->has_left(rank);
}

std::string HierarchyTransport::known_of(int rank) {
  return is_here(rank) ? group_->known_of(layout_.local_rank(rank)) : network_->known_of(rank);
}

std::unique_ptr<Transport> HierarchyTransport::split(const std::vector<int>& ranks, const std::string& name) {
  std::vector<std::string> hosts;
  std::vector<int> here;
  for (const int rank : ranks) {
    hosts.push_back(std::to_string(layout_.host_of(rank)));
    if (is_here(rank)) here.push_back(layout_.local_rank(rank));
  }
  if (here.size() == ranks.size()) return group_->split(here, name);
  const auto layout = RankLayout::make(hosts);
  auto network = network_->split(ranks, name);
  if (!layout || !layout->has_two_levels()) return network;
  auto memory = group_->split(here, fmt::format("{}/{}", name, layout_.host_of(rank_)));
  return std::make_unique<HierarchyTransport>(std::move(network), std::move(memory), *layout, timeout_);
}

std::unique_ptr<Transport> HierarchyTransport::inside() {
  std::vector<int> all(static_cast<size_t>(group_->world()));
  std::iota(all.begin(), all.end(), 0);
  auto memory = group_->split(all, fmt::format("inside/{}", splits_++));
  memory->shared_regions()->join(failures_, ranks_of(layout_, host_));
  return memory;
}

// Sends this rank's slice, of elements of `unit` bytes, to the other hosts, and receives this rank's shares
// of the slices there: the slice of rank r belongs to places[r].
void HierarchyTransport::between_hosts(const Shares& shares, size_t unit, const std::byte* own,
                                       const std::vector<std::byte*>& places, const Operation& operation) {
  std::vector<ConstBytes> sends(static_cast<size_t>(world_));
  std::vector<Bytes> recvs(static_cast<size_t>(world_));
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * unit; };
  for (int rank = 0; rank < world_; ++rank) {
    if (is_here(rank)) continue;
    const auto r = static_cast<size_t>(rank);
    const ElementRange theirs = shares.between(rank_, rank);
    const ElementRange ours = shares.between(rank, rank_);
    recvs[r] = {places[r] + bytes(theirs.begin - shares.own(rank).begin), bytes(theirs.size())};
    sends[r] = {own + bytes(ours.begin - shares.own(rank_).begin), bytes(ours.size())};
  }
  network_->exchange(sends, recvs, operation);
}

// Sends every rank's own slice to all ranks, through the halves: the slice of rank r to places[r].
void HierarchyTransport::hand_out(const Shares& shares, size_t unit, const std::byte* own,
                                  const std::vector<std::byte*>& places, const Operation& operation) {
  const Halves halves = next_halves();
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * unit; };
  std::vector<std::byte*> in_half;
  for (int r = 0; r < world_; ++r) in_half.push_back(mine(halves) + bytes(shares.own(r).begin));
  between_hosts(shares, unit, own, in_half, operation);
  std::copy_n(own, bytes(shares.own(rank_).size()), in_half[static_cast<size_t>(rank_)]);
  group_->sync(operation);
  const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
  for (int owner = 0; owner < world_; ++owner) {
    for (const int rank : ranks_of(layout_, host_)) {
      const ElementRange share = shares.between(rank, owner);
      std::copy_n(halves[static_cast<size_t>(layout_.local_rank(rank))] + bytes(share.begin),
                  bytes(share.size()),
                  places[static_cast<size_t>(owner)] + bytes(share.begin - shares.own(owner).begin));
    }
  }
}

void HierarchyTransport::all_gather(std::span<const Array> all, const Array& own,
                                    const Operation& operation) {
  std::vector<Bytes> outputs;
  for (const Array& output : all) outputs.push_back(output.bytes());
  const ConstBytes input = own.bytes();
  const size_t chunk = kHalf / static_cast<size_t>(world_) / 64 * 64;
  size_t longest = 0;
  for (const Bytes& output : outputs) longest = std::max(longest, output.size());
  const auto watched = watch(operation);
  for (size_t done = 0; done < longest; done += chunk) {
    std::vector<int64_t> lengths;
    std::vector<std::byte*> places;
    for (const Bytes& output : outputs) {
      const size_t begin = std::min(done, output.size());
      lengths.push_back(static_cast<int64_t>(std::min(chunk, output.size() - begin)));
      places.push_back(output.data() + begin);
    }
    const Shares shares(layout_, slices_of_lengths(lengths));
    hand_out(shares, 1, input.data() + std::min(done, input.size()), places, operation);
  }
}

// The root shares the bytes with the ranks of its host, which then own one slice each.
void HierarchyTransport::broadcast(const Array& values, int root, const Operation& operation) {
  const Bytes bytes = values.bytes();
  const int source = layout_.host_of(root);
  const auto watched = watch(operation);
  for (size_t done = 0; done < bytes.size(); done += kHalf) {
    const size_t size = std::min(kHalf, bytes.size() - done);
    const std::byte* shown = bytes.data() + done;
    if (host_ == source) {
      const Halves halves = next_halves();
      if (rank_ == root) std::copy_n(shown, size, mine(halves));
      group_->sync(operation);
      shown = halves[static_cast<size_t>(layout_.local_rank(root))];
    }
    std::vector<int64_t> lengths;
    for (int r = 0; r < world_; ++r) {
      const ElementRange slice =
          slice_of(static_cast<int64_t>(size), layout_.local_rank(r), layout_.size(source));
      lengths.push_back(layout_.host_of(r) == source ? slice.size() : 0);
    }
    const Shares shares(layout_, slices_of_lengths(lengths));
    std::vector<std::byte*> places;
    for (int r = 0; r < world_; ++r) places.push_back(bytes.data() + done + shares.own(r).begin);
    hand_out(shares, 1, shown + shares.own(rank_).begin, places, operation);
  }
}

// Synchronises the ranks of each host, then the first ranks of all hosts, then the ranks of each host again.
void HierarchyTransport::sync(const Operation& operation) {
  std::byte here{};
  const auto ranks = static_cast<size_t>(world_);
  std::vector<std::byte> there(ranks);
  std::vector<ConstBytes> sends(ranks);
  std::vector<Bytes> recvs(ranks);
  for (int host = 0; host < layout_.hosts() && local_ == 0; ++host) {
    if (host == host_) continue;
    const auto r = static_cast<size_t>(layout_.first(host));
    sends[r] = {&here, 1};
    recvs[r] = {&there[r], 1};
  }
  const auto watched = watch(operation);
  group_->sync(operation);
  network_->exchange(sends, recvs, operation);
  group_->sync(operation);
}

}  // namespace tutti::comm
