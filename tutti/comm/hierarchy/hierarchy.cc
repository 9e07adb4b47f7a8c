#include "tutti/comm/hierarchy/hierarchy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/comm/failures.h"
#include "tutti/comm/flat.h"
#include "tutti/comm/hierarchy/host_sums.h"
#include "tutti/comm/reduce.h"
#include "tutti/comm/scratch_buffer.h"

namespace tutti::comm {
namespace {

// Half of the memory that a rank shares with the others of its host. Larger halves keep more bytes in flight,
// so that the network idles less; smaller ones fit better into the cache.
constexpr size_t kHalf = size_t{8} << 20;
// Up to this size, a second message takes longer than sending the bytes that it would save.
constexpr size_t kSmall = size_t{8} << 10;

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

// Returns the reduction of the values that are sent: half precision is rounded only at the end, unless it is
// rounded each time.
Reduction widened(Reduction reduction) {
  if (!reduction.round_each) reduction.type = sum_type(reduction.type);
  return reduction;
}

// Returns into how many parts every slice is cut, so that all inputs of a rank fit into half of the memory.
// slice_of() rounds the end of each part to at most kUnit elements.
int parts_of(const SlicedSum& sum, const Reduction& wide, int world) {
  constexpr int64_t kUnit = 64;
  std::vector<int64_t> inputs(static_cast<size_t>(world));
  for (const Source& source : sum.sources->all) inputs[static_cast<size_t>(source.rank)] += source.present;
  const int64_t most = std::max<int64_t>(1, *std::max_element(inputs.begin(), inputs.end()));
  const auto room = static_cast<int64_t>(kHalf / c10::elementSize(wide.type)) / most - kUnit * world;
  TUTTI_CHECK(room > 0, "{} inputs of each of {} ranks", most, world);
  return static_cast<int>((sum.reduction.count + kUnit * world + room - 1) / room);
}

// The ranks of a host share memory in two halves, which are used in turn to add and to hand out: each rank
// fills its own half, all meet, and each reads the halves of all. When a half is filled again, all ranks
// have met on the other half since then, and so have finished reading this one.
class HierarchyTransport final : public Transport, public TwoLevels {
 public:
  HierarchyTransport(std::unique_ptr<Transport> network, std::unique_ptr<Transport> memory, RankLayout layout,
                     std::chrono::milliseconds timeout);

  std::string name() const override { return fmt::format("{}+{}", group_->name(), network_->name()); }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  TwoLevels* two_levels() override { return this; }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  void combine(std::span<const SlicedSum> sums, const Operation& operation) override;
  void all_gather(std::span<const torch::Tensor> outputs, const torch::Tensor& input,
                  const Operation& operation) override;
  void broadcast(const torch::Tensor& values, int root, const Operation& operation) override;
  void sync(const Operation& operation) override;
  void abandon(const std::string& text) override { failures_.give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

  const RankLayout& layout() const override { return layout_; }
  std::unique_ptr<Transport> inside() override;

 private:
  using Halves = std::vector<std::byte*>;  // by rank inside the host

  // The inputs of this host for a part of every rank's slice of a sum.
  struct Inputs {
    std::vector<const std::byte*> places;  // by source of this host
    std::vector<int64_t> begins;           // by rank: the element of a place with which its part begins
  };

  bool is_here(int rank) const { return layout_.host_of(rank) == host_; }
  std::vector<int> all_here() const;
  std::byte* mine(const Halves& halves) const { return halves[static_cast<size_t>(local_)]; }
  Halves next_halves();
  template <class Body>
  void attempt(const Operation& operation, const Body& body);

  void combine_one(const SlicedSum& sum, const Operation& operation);
  Inputs copy_in(const SlicedSum& sum, const HostSums& sums, const Reduction& wide,
                 const std::vector<int64_t>& begins, const Shares& shares, const Operation& operation);
  void add(const HostSums& sums, const Inputs& inputs, const Shares& shares, const Reduction& reduction,
           std::byte* to, const Operation& operation);
  const std::byte* add_small(const HostSums& sums, const Inputs& inputs, const Reduction& reduction,
                             const Operation& operation);
  void between_hosts(const Shares& shares, size_t unit, const std::byte* own,
                     const std::vector<std::byte*>& places, const Operation& operation);
  void hand_out(const Shares& shares, size_t unit, const std::byte* own,
                const std::vector<std::byte*>& places, const Operation& operation);

  const std::chrono::milliseconds timeout_;
  const RankLayout layout_;
  const int rank_;
  const int world_;
  const int host_;
  const int local_;
  const std::unique_ptr<Transport> network_;
  Failures& failures_;
  const SharedBlock block_;                 // two halves per rank
  const std::unique_ptr<Transport> group_;  // the ranks of this host
  size_t uses_ = 0;
  int splits_ = 0;
  ScratchBuffer sends_;
  ScratchBuffer recvs_;
  ScratchBuffer sum_;
};

Failures& failures_of(Transport& network) {
  Failures* const failures = network.failures();
  TUTTI_CHECK(failures != nullptr, "{} has no Failures", network.name());
  return *failures;
}

// Allocates the block before any rank has the group: if a group failed once some ranks had it, the ranks
// that are still making it would fail as well.
SharedBlock make_block(Transport& memory, Failures& failures, std::chrono::milliseconds timeout) {
  try {
    return memory.shared_blocks()->allocate(2 * kHalf, operation_of("connect", {}, timeout));
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
      block_(make_block(*memory, failures_, timeout_)),
      group_(std::move(memory)) {
  group_->shared_blocks()->join(failures_, ranks_of(layout_, host_));
  TUTTI_CHECK(group_->rank() == local_ && group_->world() == layout_.size(host_), "rank {} is rank {} of {}",
              rank_, group_->rank(), group_->world());
}

std::vector<int> HierarchyTransport::all_here() const {
  std::vector<int> ranks;
  for (int i = 0; i < group_->world(); ++i) ranks.push_back(i);
  return ranks;
}

HierarchyTransport::Halves HierarchyTransport::next_halves() {
  Halves halves = block_.parts;
  for (std::byte*& half : halves) half += (uses_ % 2) * kHalf;
  ++uses_;
  return halves;
}

// Registers one operation with the failures of all hosts. Its steps inside the host and over the network
// count as parts of it, so that they know of every rank that waits in any of them.
template <class Body>
void HierarchyTransport::attempt(const Operation& operation, const Body& body) {
  std::vector<int> others;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) others.push_back(r);
  }
  const auto watch = failures_.watch(operation, Failures::Party::All, std::move(others));
  body();
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
  attempt(operation, [&] {
    if (group_->world() > 1) group_->exchange(sends_here, recvs_here, operation);
    network_->exchange(sends_there, recvs_there, operation);
  });
}

void HierarchyTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  is_here(to) ? group_->send(bytes, layout_.local_rank(to), operation) : network_->send(bytes, to, operation);
}

void HierarchyTransport::recv(Bytes bytes, int from, const Operation& operation) {
  is_here(from) ? group_->recv(bytes, layout_.local_rank(from), operation)
                : network_->recv(bytes, from, operation);
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
  return hierarchy_transport(std::move(network), std::move(memory), *layout, timeout_);
}

std::unique_ptr<Transport> HierarchyTransport::inside() {
  auto memory = group_->split(all_here(), fmt::format("inside/{}", splits_++));
  memory->shared_blocks()->join(failures_, ranks_of(layout_, host_));
  return memory;
}

void HierarchyTransport::combine(std::span<const SlicedSum> sums, const Operation& asked) {
  for (const SlicedSum& sum : sums) {
    const Operation operation = with_whole(asked, sum.reduction);
    attempt(operation, [&] { combine_one(sum, operation); });
  }
}

// Inputs that the ranks of a host share are added where they are, and all others from the halves. Within a
// host, whoever reads an element of shared inputs also writes its result, so that no rank has to wait before
// it writes.
void HierarchyTransport::combine_one(const SlicedSum& sum, const Operation& operation) {
  const HostSums sums(layout_, rank_, *sum.sources);
  const Reduction wide = widened(sum.reduction);
  const bool shared = sum.shared && wide.type == sum.reduction.type;
  const size_t element = c10::elementSize(sum.reduction.type);
  const std::vector<Slice> slices = sum.scatters() ? sum.slices : even_sections(layout_, sum.reduction.count);
  const bool small = !sum.scatters() && static_cast<size_t>(sum.reduction.count) * element <= kSmall;
  const int parts = small ? 1 : parts_of(sum, wide, world_);
  std::byte* const output = bytes_of(sum.outputs[0]).data();
  for (int i = 0; i < parts; ++i) {
    std::vector<int64_t> lengths;
    std::vector<int64_t> begins;
    std::vector<std::byte*> places;
    for (const Slice& slice : slices) {
      const Slice part = slice_of(slice.size(), i, parts);
      lengths.push_back(part.size());
      begins.push_back(slice.begin + part.begin);
      places.push_back(output + static_cast<size_t>(sum.scatters() ? part.begin : begins.back()) * element);
    }
    const Shares shares(layout_, sections_of(lengths));
    const Inputs inputs = shared ? Inputs{sums.own_inputs(sum.inputs), begins}
                                 : copy_in(sum, sums, wide, begins, shares, operation);
    if (small) {
      const std::byte* const result = add_small(sums, inputs, wide, operation);
      if (shared) group_->sync(operation);  // other ranks may still read what is overwritten now
      convert(result, wide.type, output, sum.reduction.type, sum.reduction.count);
      return;
    }
    std::byte* const own = places[static_cast<size_t>(rank_)];
    const int64_t length = lengths[static_cast<size_t>(rank_)];
    std::byte* const to = wide.type == sum.reduction.type
                              ? own
                              : sum_.at_least(static_cast<size_t>(length) * c10::elementSize(wide.type));
    add(sums, inputs, shares, wide, to, operation);
    convert(to, wide.type, own, sum.reduction.type, length);
    if (sum.scatters()) continue;
    if (!shared) {
      hand_out(shares, element, own, places, operation);
      continue;
    }
    between_hosts(shares, element, own, places, operation);
    const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
    for (int owner = 0; owner < world_; ++owner) {
      const Slice share = shares.between(rank_, owner);
      std::byte* const from = places[static_cast<size_t>(owner)] +
                              static_cast<size_t>(share.begin - shares.own(owner).begin) * element;
      for (const torch::Tensor& other : sum.outputs)
        copy_bytes(bytes_of(other).data() + (from - output), from,
                   static_cast<size_t>(share.size()) * element);
    }
  }
  if (shared) group_->sync(operation);
}

// Each rank copies its inputs into its half, the parts of all ranks one after the other; all meet.
HierarchyTransport::Inputs HierarchyTransport::copy_in(const SlicedSum& sum, const HostSums& sums,
                                                       const Reduction& wide,
                                                       const std::vector<int64_t>& begins,
                                                       const Shares& shares, const Operation& operation) {
  const Halves halves = next_halves();
  const size_t element = c10::elementSize(wide.type);
  Inputs inputs;
  for (int r = 0; r < world_; ++r) inputs.begins.push_back(shares.own(r).begin);
  {
    const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
    std::vector<size_t> used(halves.size());
    for (size_t s = sums.first_source(); s < sums.end_of_sources(); ++s) {
      const Source& source = sum.sources->all[s];
      const auto local = static_cast<size_t>(layout_.local_rank(source.rank));
      std::byte* const place = halves[local] + used[local];
      inputs.places.push_back(place);
      if (!source.present) continue;
      used[local] += static_cast<size_t>(shares.own(world_ - 1).end) * element;
      if (source.rank != rank_) continue;
      const std::byte* const from = bytes_of(sum.inputs[s]).data();
      for (int r = 0; r < world_; ++r) {
        const Slice& own = shares.own(r);
        const int64_t begin = begins[static_cast<size_t>(r)];
        convert(from + static_cast<size_t>(begin) * c10::elementSize(sum.reduction.type), sum.reduction.type,
                place + static_cast<size_t>(own.begin) * element, wide.type, own.size());
      }
    }
  }
  group_->sync(operation);
  return inputs;
}

// Computes the sum of this rank's own section.
void HierarchyTransport::add(const HostSums& sums, const Inputs& inputs, const Shares& shares,
                             const Reduction& reduction, std::byte* to, const Operation& operation) {
  const size_t element = c10::elementSize(reduction.type);
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
      const Slice share = shares.between(rank_, rank);
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
  const size_t size = static_cast<size_t>(reduction.count) * c10::elementSize(reduction.type);
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

// Sends this rank's section, of elements of `unit` bytes, to the other hosts, and receives this rank's shares
// of the sections there: that of rank r belongs to places[r].
void HierarchyTransport::between_hosts(const Shares& shares, size_t unit, const std::byte* own,
                                       const std::vector<std::byte*>& places, const Operation& operation) {
  std::vector<ConstBytes> sends(static_cast<size_t>(world_));
  std::vector<Bytes> recvs(static_cast<size_t>(world_));
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * unit; };
  for (int rank = 0; rank < world_; ++rank) {
    if (is_here(rank)) continue;
    const auto r = static_cast<size_t>(rank);
    const Slice theirs = shares.between(rank_, rank);
    const Slice ours = shares.between(rank, rank_);
    recvs[r] = {places[r] + bytes(theirs.begin - shares.own(rank).begin), bytes(theirs.size())};
    sends[r] = {own + bytes(ours.begin - shares.own(rank_).begin), bytes(ours.size())};
  }
  network_->exchange(sends, recvs, operation);
}

// Sends every rank's own section to all ranks, through the halves: that of rank r to places[r].
void HierarchyTransport::hand_out(const Shares& shares, size_t unit, const std::byte* own,
                                  const std::vector<std::byte*>& places, const Operation& operation) {
  const Halves halves = next_halves();
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * unit; };
  std::vector<std::byte*> in_half;
  for (int r = 0; r < world_; ++r) in_half.push_back(mine(halves) + bytes(shares.own(r).begin));
  between_hosts(shares, unit, own, in_half, operation);
  copy_bytes(in_half[static_cast<size_t>(rank_)], own, bytes(shares.own(rank_).size()));
  group_->sync(operation);
  const SpanScope span(operation.timeline, Activity::Copy, "copy out", operation.step);
  for (int owner = 0; owner < world_; ++owner) {
    for (const int rank : ranks_of(layout_, host_)) {
      const Slice share = shares.between(rank, owner);
      copy_bytes(places[static_cast<size_t>(owner)] + bytes(share.begin - shares.own(owner).begin),
                 halves[static_cast<size_t>(layout_.local_rank(rank))] + bytes(share.begin),
                 bytes(share.size()));
    }
  }
}

void HierarchyTransport::all_gather(std::span<const torch::Tensor> all, const torch::Tensor& own,
                                    const Operation& operation) {
  std::vector<Bytes> outputs;
  for (const torch::Tensor& output : all) outputs.push_back(bytes_of(output));
  const ConstBytes input = bytes_of(own);
  const size_t chunk = kHalf / static_cast<size_t>(world_) / 64 * 64;
  size_t longest = 0;
  for (const Bytes& output : outputs) longest = std::max(longest, output.size());
  attempt(operation, [&] {
    for (size_t done = 0; done < longest; done += chunk) {
      std::vector<int64_t> lengths;
      std::vector<std::byte*> places;
      for (const Bytes& output : outputs) {
        const size_t begin = std::min(done, output.size());
        lengths.push_back(static_cast<int64_t>(std::min(chunk, output.size() - begin)));
        places.push_back(output.data() + begin);
      }
      const Shares shares(layout_, sections_of(lengths));
      hand_out(shares, 1, input.data() + std::min(done, input.size()), places, operation);
    }
  });
}

// The root shares the bytes with the ranks of its host, which then own one slice each.
void HierarchyTransport::broadcast(const torch::Tensor& values, int root, const Operation& operation) {
  const Bytes bytes = bytes_of(values);
  const int source = layout_.host_of(root);
  attempt(operation, [&] {
    for (size_t done = 0; done < bytes.size(); done += kHalf) {
      const size_t size = std::min(kHalf, bytes.size() - done);
      const std::byte* shown = bytes.data() + done;
      if (host_ == source) {
        const Halves halves = next_halves();
        if (rank_ == root) copy_bytes(mine(halves), shown, size);
        group_->sync(operation);
        shown = halves[static_cast<size_t>(layout_.local_rank(root))];
      }
      std::vector<int64_t> lengths;
      for (int r = 0; r < world_; ++r) {
        const Slice slice = slice_of(static_cast<int64_t>(size), layout_.local_rank(r), layout_.size(source));
        lengths.push_back(layout_.host_of(r) == source ? slice.size() : 0);
      }
      const Shares shares(layout_, sections_of(lengths));
      std::vector<std::byte*> places;
      for (int r = 0; r < world_; ++r) places.push_back(bytes.data() + done + shares.own(r).begin);
      hand_out(shares, 1, shown + shares.own(rank_).begin, places, operation);
    }
  });
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
  attempt(operation, [&] {
    group_->sync(operation);
    network_->exchange(sends, recvs, operation);
    group_->sync(operation);
  });
}

}  // namespace

std::unique_ptr<Transport> hierarchy_transport(std::unique_ptr<Transport> network,
                                               std::unique_ptr<Transport> memory, const RankLayout& layout,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<HierarchyTransport>(std::move(network), std::move(memory), layout, timeout);
}

}  // namespace tutti::comm
