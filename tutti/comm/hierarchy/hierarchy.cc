#include "tutti/comm/hierarchy/hierarchy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tutti/base/check.h"
#include "tutti/comm/hierarchy/host_group.h"
#include "tutti/comm/hierarchy/host_sums.h"
#include "tutti/comm/hierarchy/shares.h"
#include "tutti/comm/room.h"
#include "tutti/comm/widen.h"

namespace tutti::comm {
namespace {

// Half of the memory that a rank shares with the others of its host. Larger halves keep more bytes in flight,
// so that the network idles less; smaller ones fit better into the cache.
constexpr size_t kHalf = size_t{8} << 20;
// Up to this size, a second message takes longer than sending the bytes that it would save.
constexpr size_t kSmall = size_t{8} << 10;

std::vector<const std::byte*> places_at(const std::vector<std::byte*>& parts, size_t offset) {
  std::vector<const std::byte*> places;
  for (const std::byte* part : parts) places.push_back(part + offset);
  return places;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t size) {
  if (size > 0 && to != from) std::memcpy(to, from, size);
}

// The ranks of a host share memory in two halves, which are used in turn to add and to hand out: each rank
// fills its own half, all meet, and each reads the halves of all. When a half is filled again, all ranks
// have met on the other half since then, and so have finished reading this one.
class HierarchyTransport final : public Transport, public ByHost {
 public:
  HierarchyTransport(std::unique_ptr<Transport> network, std::unique_ptr<Transport> memory, RankLayout layout,
                     std::chrono::milliseconds timeout);

  std::string name() const override { return fmt::format("{}+{}", group_.name(), network_->name()); }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  Abilities abilities() override { return {.by_host = this}; }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  void abandon(const std::string& text) override { board_.give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

  const RankLayout& layout() const override { return layout_; }
  std::unique_ptr<Transport> inside() override;
  void all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) override;
  void reduce_scatter(std::byte* output, const std::byte* input, const Reduction& reduction,
                      const Operation& operation) override;
  void all_gather(std::span<const Bytes> outputs, ConstBytes input, const Operation& operation) override;
  void broadcast(Bytes bytes, int root, const Operation& operation) override;
  void sync(const Operation& operation) override;

 private:
  using Halves = std::vector<std::byte*>;  // by rank inside the host

  bool is_here(int rank) const { return layout_.host_of(rank) == host_; }
  std::vector<int> all_here() const;
  std::byte* mine(const Halves& halves) const { return halves[static_cast<size_t>(local_)]; }
  Halves next_halves();
  template <class Body>
  void attempt(const Operation& operation, const Body& body);
  void over_network(const std::vector<ConstBytes>& sends, const std::vector<Bytes>& recvs,
                    const Operation& operation);

  const std::byte* add(const Shares& shares, const Halves& halves, const Reduction& reduction,
                       const Operation& operation);
  const std::byte* add_small(const Halves& halves, const Reduction& reduction, const Operation& operation);
  void hand_out(const Shares& shares, size_t unit, const std::byte* own,
                const std::vector<std::byte*>& places, const Operation& operation);

  const std::chrono::milliseconds timeout_;
  const RankLayout layout_;
  const int rank_;
  const int world_;
  const int host_;
  const int local_;
  const std::unique_ptr<Transport> network_;
  FailureBoard& board_;
  const SharedBlock block_;  // two halves per rank
  HostGroup group_;
  const HostSums sums_;
  size_t uses_ = 0;
  int splits_ = 0;
  Room sends_;
  Room recvs_;
  Room sum_;
};

FailureBoard& board_of(Transport& network) {
  FailureBoard* const board = network.abilities().board;
  TUTTI_CHECK(board != nullptr, "{} has no failure board", network.name());
  return *board;
}

// Allocates the block before any rank has the group: if a group failed once some ranks had it, the ranks
// that are still making it would fail as well.
SharedBlock make_block(Transport& memory, FailureBoard& board, std::chrono::milliseconds timeout) {
  try {
    return memory.abilities().in_place->allocate(2 * kHalf, operation_of("connect", {}, timeout));
  } catch (const Error& error) {
    board.report(error.kind(), error.what());
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
      board_(board_of(*network_)),
      block_(make_block(*memory, board_, timeout_)),
      group_(std::move(memory), ranks_of(layout_, host_), board_),
      sums_(layout_, rank_) {
  TUTTI_CHECK(group_.rank() == local_ && group_.world() == layout_.size(host_), "rank {} is rank {} of {}",
              rank_, group_.rank(), group_.world());
}

std::vector<int> HierarchyTransport::all_here() const {
  std::vector<int> ranks;
  for (int i = 0; i < group_.world(); ++i) ranks.push_back(i);
  return ranks;
}

HierarchyTransport::Halves HierarchyTransport::next_halves() {
  Halves halves = block_.parts;
  for (std::byte*& half : halves) half += (uses_ % 2) * kHalf;
  ++uses_;
  return halves;
}

// Registers one operation with the board. Its steps inside the host and over the network count as parts of
// it, so that the board knows of every rank that waits in any of them.
template <class Body>
void HierarchyTransport::attempt(const Operation& operation, const Body& body) {
  std::vector<int> others;
  for (int r = 0; r < world_; ++r) {
    if (r != rank_) others.push_back(r);
  }
  const auto watch = board_.watch(operation, FailureBoard::Party::All, std::move(others));
  body();
}

void HierarchyTransport::over_network(const std::vector<ConstBytes>& sends, const std::vector<Bytes>& recvs,
                                      const Operation& operation) {
  const SpanScope span(operation.timeline, Activity::Copy, "between hosts", operation.step);
  network_->exchange(sends, recvs, operation);
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
    if (group_.world() > 1) group_.exchange(sends_here, recvs_here, operation);
    over_network(sends_there, recvs_there, operation);
  });
}

void HierarchyTransport::send(ConstBytes bytes, int to, const Operation& operation) {
  is_here(to) ? group_.send(bytes, layout_.local_rank(to), operation) : network_->send(bytes, to, operation);
}

void HierarchyTransport::recv(Bytes bytes, int from, const Operation& operation) {
  is_here(from) ? group_.recv(bytes, layout_.local_rank(from), operation)
                : network_->recv(bytes, from, operation);
}

std::unique_ptr<Transport> HierarchyTransport::split(const std::vector<int>& ranks, const std::string& name) {
  std::vector<std::string> hosts;
  std::vector<int> here;
  for (const int rank : ranks) {
    hosts.push_back(std::to_string(layout_.host_of(rank)));
    if (is_here(rank)) here.push_back(layout_.local_rank(rank));
  }
  if (here.size() == ranks.size()) return group_.split(here, name);
  const auto layout = RankLayout::of(hosts);
  auto network = network_->split(ranks, name);
  if (!layout || !layout->has_two_levels()) return network;
  auto memory = group_.split(here, fmt::format("{}/{}", name, layout_.host_of(rank_)));
  return hierarchy_transport(std::move(network), std::move(memory), *layout, timeout_);
}

std::unique_ptr<Transport> HierarchyTransport::inside() {
  auto memory = group_.split(all_here(), fmt::format("inside/{}", splits_++));
  return std::make_unique<HostGroup>(std::move(memory), ranks_of(layout_, host_), board_);
}

// Computes the sum of this rank's own stretch from the halves, after the ranks of each host have met.
const std::byte* HierarchyTransport::add(const Shares& shares, const Halves& halves,
                                         const Reduction& reduction, const Operation& operation) {
  const size_t element = c10::elementSize(reduction.type);
  const auto ranks = static_cast<size_t>(world_);
  const auto size_between = [&](int rank, int owner) {
    return static_cast<size_t>(shares.between(rank, owner).size()) * sums_.branches(rank) * element;
  };
  size_t to_send = 0;
  size_t to_receive = 0;
  for (int r = 0; r < world_; ++r) {
    to_send += size_between(rank_, r);
    to_receive += size_between(r, rank_);
  }
  std::byte* out = sends_.of(to_send);
  std::byte* in = recvs_.of(to_receive);
  std::vector<ConstBytes> sends(ranks);
  std::vector<Bytes> recvs(ranks);
  std::vector<const std::byte*> sums(ranks);
  {
    const SpanScope span(operation.timeline, Activity::Reduce, "add inside the host", operation.step);
    for (int rank = 0; rank < world_; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const Slice share = shares.between(rank_, rank);
      sums_.add_branches(places_at(halves, static_cast<size_t>(share.begin) * element),
                         {reduction.type, reduction.op, share.size()}, out);
      sums[r] = out;
      if (!is_here(rank)) {
        sends[r] = {out, size_between(rank_, rank)};
        recvs[r] = {in, size_between(rank, rank_)};
        sums[r] = in;
        in += recvs[r].size();
      }
      out += size_between(rank_, rank);
    }
  }
  over_network(sends, recvs, operation);
  const SpanScope span(operation.timeline, Activity::Reduce, "add", operation.step);
  std::byte* const sum = sum_.of(static_cast<size_t>(shares.own(rank_).size()) * element);
  sums_.add_own(shares, sums, reduction, sum);
  return sum;
}

// Computes the whole sum at every rank: sends more bytes than necessary, but needs only one message. Each
// rank receives the sums of another host from one of the ranks there.
const std::byte* HierarchyTransport::add_small(const Halves& halves, const Reduction& reduction,
                                               const Operation& operation) {
  const size_t size = static_cast<size_t>(reduction.count) * c10::elementSize(reduction.type);
  const auto giver = [&](int host, int to) {
    return layout_.first(host) + layout_.local_rank(to) % layout_.size(host);
  };
  std::byte* const out = sends_.of(sums_.branches(rank_) * size);
  std::byte* in = recvs_.of(static_cast<size_t>(world_) * size);
  std::vector<ConstBytes> sends(static_cast<size_t>(world_));
  std::vector<Bytes> recvs(static_cast<size_t>(world_));
  std::vector<const std::byte*> sums;
  sums_.add_branches(places_at(halves, 0), reduction, out);
  for (int host = 0; host < layout_.hosts(); ++host) {
    sums.push_back(host == host_ ? out : in);
    if (host == host_) continue;
    const int rank = giver(host, rank_);
    recvs[static_cast<size_t>(rank)] = {in, sums_.branches(rank) * size};
    in += sums_.branches(rank) * size;
    for (const int to : ranks_of(layout_, host)) {
      if (giver(host_, to) == rank_) sends[static_cast<size_t>(to)] = {out, sums_.branches(rank_) * size};
    }
  }
  over_network(sends, recvs, operation);
  std::byte* const sum = sum_.of(size);
  sums_.add_all(sums, reduction, sum);
  return sum;
}

// Sends every rank's own stretch, of elements of `unit` bytes, to all ranks: that of rank r to places[r].
void HierarchyTransport::hand_out(const Shares& shares, size_t unit, const std::byte* own,
                                  const std::vector<std::byte*>& places, const Operation& operation) {
  const Halves halves = next_halves();
  const auto ranks = static_cast<size_t>(world_);
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * unit; };
  std::vector<ConstBytes> sends(ranks);
  std::vector<Bytes> recvs(ranks);
  for (int rank = 0; rank < world_; ++rank) {
    if (is_here(rank)) continue;
    const Slice theirs = shares.between(rank_, rank);
    const Slice ours = shares.between(rank, rank_);
    recvs[static_cast<size_t>(rank)] = {mine(halves) + bytes(theirs.begin), bytes(theirs.size())};
    sends[static_cast<size_t>(rank)] = {own + bytes(ours.begin - shares.own(rank_).begin),
                                        bytes(ours.size())};
  }
  over_network(sends, recvs, operation);
  copy_bytes(mine(halves) + bytes(shares.own(rank_).begin), own, bytes(shares.own(rank_).size()));
  group_.sync(operation);
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

void HierarchyTransport::all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) {
  const size_t element = c10::elementSize(reduction.type);
  const Reduction wide{sum_type(reduction.type), reduction.op, 0};
  const auto chunk = static_cast<int64_t>(kHalf / c10::elementSize(wide.type));
  attempt(operation, [&] {
    for (int64_t done = 0; done < reduction.count; done += chunk) {
      std::byte* const here = data + static_cast<size_t>(done) * element;
      const int64_t count = std::min(chunk, reduction.count - done);
      const Halves halves = next_halves();
      {
        const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
        widen(here, mine(halves), reduction.type, count);
      }
      group_.sync(operation);
      if (static_cast<size_t>(count) * element <= kSmall) {
        narrow(add_small(halves, {wide.type, wide.op, count}, operation), here, reduction.type, count);
        continue;
      }
      const Shares shares(layout_, even_stretches(layout_, count));
      const std::byte* const sum = add(shares, halves, wide, operation);
      std::vector<std::byte*> places;
      for (int r = 0; r < world_; ++r)
        places.push_back(here + static_cast<size_t>(shares.own(r).begin) * element);
      std::byte* const own = places[static_cast<size_t>(rank_)];
      narrow(sum, own, reduction.type, shares.own(rank_).size());
      hand_out(shares, element, own, places, operation);
    }
  });
}

void HierarchyTransport::reduce_scatter(std::byte* output, const std::byte* input, const Reduction& reduction,
                                        const Operation& operation) {
  const size_t element = c10::elementSize(reduction.type);
  const Reduction wide{sum_type(reduction.type), reduction.op, 0};
  const size_t wide_element = c10::elementSize(wide.type);
  const auto chunk = static_cast<int64_t>(kHalf / wide_element / static_cast<size_t>(world_));
  attempt(operation, [&] {
    for (int64_t done = 0; done < reduction.count; done += chunk) {
      const int64_t count = std::min(chunk, reduction.count - done);
      const Halves halves = next_halves();
      {
        const SpanScope span(operation.timeline, Activity::Copy, "copy in", operation.step);
        for (int r = 0; r < world_; ++r) {
          widen(input + static_cast<size_t>(r * reduction.count + done) * element,
                mine(halves) + static_cast<size_t>(r * count) * wide_element, reduction.type, count);
        }
      }
      group_.sync(operation);
      const Shares shares(layout_, stretches_of(std::vector<int64_t>(static_cast<size_t>(world_), count)));
      const std::byte* const sum = add(shares, halves, wide, operation);
      narrow(sum, output + static_cast<size_t>(done) * element, reduction.type, count);
    }
  });
}

void HierarchyTransport::all_gather(std::span<const Bytes> outputs, ConstBytes input,
                                    const Operation& operation) {
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
      const Shares shares(layout_, stretches_of(lengths));
      hand_out(shares, 1, input.data() + std::min(done, input.size()), places, operation);
    }
  });
}

// The root shares the bytes with the ranks of its host, which then own one slice each.
void HierarchyTransport::broadcast(Bytes bytes, int root, const Operation& operation) {
  const int source = layout_.host_of(root);
  attempt(operation, [&] {
    for (size_t done = 0; done < bytes.size(); done += kHalf) {
      const size_t size = std::min(kHalf, bytes.size() - done);
      const std::byte* shown = bytes.data() + done;
      if (host_ == source) {
        const Halves halves = next_halves();
        if (rank_ == root) copy_bytes(mine(halves), shown, size);
        group_.sync(operation);
        shown = halves[static_cast<size_t>(layout_.local_rank(root))];
      }
      std::vector<int64_t> lengths;
      for (int r = 0; r < world_; ++r) {
        const Slice slice = slice_of(static_cast<int64_t>(size), layout_.local_rank(r), layout_.size(source));
        lengths.push_back(layout_.host_of(r) == source ? slice.size() : 0);
      }
      const Shares shares(layout_, stretches_of(lengths));
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
    group_.sync(operation);
    over_network(sends, recvs, operation);
    group_.sync(operation);
  });
}

}  // namespace

std::unique_ptr<Transport> hierarchy_transport(std::unique_ptr<Transport> network,
                                               std::unique_ptr<Transport> memory, const RankLayout& layout,
                                               std::chrono::milliseconds timeout) {
  return std::make_unique<HierarchyTransport>(std::move(network), std::move(memory), layout, timeout);
}

}  // namespace tutti::comm
