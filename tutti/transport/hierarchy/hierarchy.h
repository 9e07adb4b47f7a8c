#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tutti/transport/failures.h"
#include "tutti/transport/hierarchy/host_sums.h"
#include "tutti/transport/scratch_buffer.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

// A transport for ranks on several hosts, some of which have several ranks. Ranks of a host share memory, and
// hosts communicate over the network. docs/architecture.md shows the steps and their costs.
//
// The ranks of a host share memory in two halves, which are used in turn to add and to hand out: each rank
// fills its own half, all meet, and each reads the halves of all. When a half is filled again, all ranks
// have met on the other half since then, and so have finished reading this one.
class HierarchyTransport final : public Transport, public TwoLevels {
 public:
  // `network` must have all ranks and `Failures`; `memory` must have SharedRegions and the ranks of this
  // host, in their order. Every rank must make one.
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
  OperationLabel await_message(int from, const Operation& operation) override;
  std::optional<OperationLabel> next_message(int from) override;
  bool has_left(int rank) override;
  void completed() override { group_->completed(); }
  std::string known_of(int rank) override;
  void combine(std::span<const ArraySum> sums, const Operation& operation) override;
  void all_gather(std::span<const Array> outputs, const Array& input, const Operation& operation) override;
  void broadcast(const Array& values, int root, const Operation& operation) override;
  void sync(const Operation& operation) override;
  void abandon(const std::string& text) override { failures_.give_up(text); }
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

  const RankLayout& layout() const override { return layout_; }
  std::unique_ptr<Transport> inside() override;

 private:
  // Half of the memory that a rank shares with the others of its host. Larger halves keep more bytes in
  // flight, so that the network idles less; smaller ones fit better into the cache.
  static constexpr size_t kHalf = size_t{8} << 20;
  using Halves = std::vector<std::byte*>;  // by rank inside the host

  // A chunk of every rank's slice of a sum.
  struct Chunk {
    Shares shares;
    std::vector<int64_t> begins;     // by rank: the element of the sum with which its chunk begins
    std::vector<std::byte*> places;  // by rank: where its chunk of the sum belongs
  };
  // The inputs of this host for a chunk of every rank's slice.
  struct Inputs {
    std::vector<const std::byte*> places;  // by source of this host
    std::vector<int64_t> begins;           // by rank: the element of a place with which its chunk begins
  };

  static SharedRegion make_region(Transport& memory, Failures& failures, std::chrono::milliseconds timeout);
  bool is_here(int rank) const { return layout_.host_of(rank) == host_; }
  std::byte* mine(const Halves& halves) const { return halves[static_cast<size_t>(local_)]; }
  Halves next_halves();
  Failures::Watch watch(const Operation& operation);

  // In hierarchy_sums.cc.
  static int chunks_in(const ArraySum& sum, const Reduction& wide, int world);
  void combine_one(const ArraySum& sum, const Operation& operation);
  Chunk chunk_of(const ArraySum& sum, const std::vector<ElementRange>& slices, int index, int chunks) const;
  Inputs copy_in(const ArraySum& sum, const HostSums& sums, const Reduction& wide, const Chunk& chunk,
                 const Operation& operation);
  void add(const HostSums& sums, const Inputs& inputs, const Shares& shares, const Reduction& reduction,
           std::byte* to, const Operation& operation);
  const std::byte* add_small(const HostSums& sums, const Inputs& inputs, const Reduction& reduction,
                             const Operation& operation);
  void write_to_all(const ArraySum& sum, const Chunk& chunk, const Operation& operation);

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
  const SharedRegion region_;               // two halves per rank
  const std::unique_ptr<Transport> group_;  // the ranks of this host
  size_t uses_ = 0;
  int splits_ = 0;
  ScratchBuffer sends_;
  ScratchBuffer recvs_;
  ScratchBuffer sum_;
};

}  // namespace tutti::comm
