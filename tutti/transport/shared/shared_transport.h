#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/transport/failures.h"
#include "tutti/transport/reduce.h"
#include "tutti/transport/shared/shared_memory.h"
#include "tutti/transport/shared/signal.h"
#include "tutti/transport/transport.h"

namespace tutti::comm {

// Every rank's part of the control region begins with a ControlSlot, which is followed by its pipes.
struct ControlSlot;
struct RankPipe;
struct OperationSummary;

// A transport for ranks that share memory. They meet at sync points: a rank describes its next operation in a
// notice, increments its signal, and waits until the signals of all others have reached the same count.
// Between two sync points each rank writes only memory that the others do not read.
//
// Vectors from allocate() are added in place: each rank adds one slice from all ranks' memory and writes the
// sum back to all. All sums of such vectors need one sync point after them, and one before. Everything else
// goes through staging buffers, one per rank. Each has two halves, so that one half can be filled while
// others still read the other.
//
// The first rank that detects a failure writes its cause into the control region; all others read it there.
// If the ranks are only some of those that fail together, `Failures` takes the place of this (join).
class SharedTransport final : public Transport, public SharedRegions {
 public:
  SharedTransport(std::unique_ptr<SharedMemory> memory, std::chrono::milliseconds timeout);
  ~SharedTransport() override;

  void join(Failures& failures, std::vector<int> ranks) override;
  std::string name() const override { return memory_->name(); }
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  SharedRegions* shared_regions() override { return this; }
  void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                const Operation& operation) override;
  void send(ConstBytes bytes, int to, const Operation& operation) override;
  void recv(Bytes bytes, int from, const Operation& operation) override;
  OperationLabel await_message(int from, const Operation& operation) override;
  std::optional<OperationLabel> next_message(int from) override;
  bool has_left(int rank) override;
  void combine(std::span<const ArraySum> sums, const Operation& operation) override;
  void all_gather(std::span<const Array> outputs, const Array& input, const Operation& operation) override;
  void broadcast(const Array& values, int root, const Operation& operation) override;
  void sync(const Operation& operation) override;
  void completed() override;
  std::string known_of(int rank) override;
  void abandon(const std::string& text) override;
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

  SharedRegion allocate(size_t size, const Operation& operation) override;
  SharedRegion everyones(const std::byte* mine, size_t size) const override;

 private:
  struct RegionOffset {
    int32_t region;  // -1: not in a region
    uint64_t offset;
  };
  // A region that allocate() returned; `memory` expires when nobody holds the region any more.
  struct Given {
    std::vector<std::byte*> parts;
    size_t size;
    std::weak_ptr<void> memory;
  };
  using Late = std::function<std::vector<int>()>;  // returns the ranks that have not arrived yet

  struct Membership {
    Failures& failures;
    std::vector<int> ranks;
  };

  std::unique_ptr<Failures::Watch> watch(const Operation& operation, int peer = -1);
  std::chrono::steady_clock::time_point deadline_of(const Operation& operation) const;
  ControlSlot& slot(int rank) const;
  RankPipe& pipe_between(int from, int to) const;
  std::vector<std::byte*> next_staging();
  void meet(const Operation& operation, OperationSummary summary);
  const OperationSummary& summary_of(int rank) const;
  void require_same_operation();
  std::vector<int> behind() const;
  std::string last_seen(int rank) const;
  void wait_for(int peer, Signal& signal, uint32_t target, const OperationLabel& label,
                const Operation& operation);
  bool is_gone(int rank);
  void look_up(const Late& late, const Operation& operation);
  void look_for_stopped(const std::vector<int>& late, const Operation& operation);
  void leave_word(ErrorKind kind, const std::string& text);
  [[noreturn]] void fail_together(ErrorKind kind, const std::string& text);
  void move(std::span<const ConstBytes> sends, std::span<const Bytes> recvs, const Operation& operation);
  [[noreturn]] void fail_other_size(const Operation& operation, size_t expected, int from, size_t sent);
  void throw_if_failed();
  RegionOffset place_of(const std::byte* data, size_t size) const;
  void add_slice(const ArraySum& sum, std::vector<const std::byte*> inputs, std::vector<std::byte*> outputs,
                 const Operation& operation) const;
  void all_reduce(const ArraySum& sum, const Operation& operation);
  void add_in_cells(const ArraySum& sum, const Operation& operation);

  const std::unique_ptr<SharedMemory> memory_;
  const int rank_;
  const int world_;
  const std::chrono::milliseconds timeout_;
  const WaitOptions wait_options_;
  SharedRegion control_;
  std::optional<Membership> joined_;  // nullopt: the ranks fail together through the control region
  std::map<int32_t, Given> given_;    // by the allocation's number, which is the same at all ranks
  int32_t allocations_ = 0;
  uint32_t meetings_ = 0;
  uint32_t staging_uses_ = 0;

  // When a rank was first and last seen stopped.
  struct Stopped {
    std::chrono::steady_clock::time_point since;
    std::chrono::steady_clock::time_point seen;
  };
  std::mutex mutex_;                // also held while this rank announces that it waits for a message
  std::map<int, Stopped> stopped_;  // guarded by mutex_; by rank
};

}  // namespace tutti::comm
