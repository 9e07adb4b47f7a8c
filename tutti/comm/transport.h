#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/timeline.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// The operation in progress and its deadline.
struct Operation {
  const char* name;  // "all_reduce"
  const char* what;
  int64_t step;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout;
  Timeline* timeline = nullptr;  // records the operation
  // All that is combined or moved, on which all ranks must agree; its count is -1 if that may differ.
  std::optional<Reduction> whole = {};
  int root = -1;           // of a broadcast, gather or scatter
  int peer = -1;           // of a send or recv: the other rank
  bool any_order = false;  // a sum may be added in any order
};

// Returns an operation that begins now. Its timeout is `options.timeout`, or `usual` if that is 0.
Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline = nullptr);

// Returns a copy of the operation with this `whole` and root.
inline Operation with_whole(Operation operation, const Reduction& whole, int root = -1) {
  operation.whole = whole;
  operation.root = root;
  return operation;
}

// Hashes what all ranks must agree on: the operation's name and root, and the element type, count and
// reduction.
uint64_t key_of(const Operation& operation);

// An operation in words that can be copied between ranks, for error messages.
struct OperationLabel {
  explicit OperationLabel(const Operation& operation);
  OperationLabel() = default;
  std::string text() const;
  std::string elements() const;  // "1000 float32"

  char name[24];
  char what[56];
  int64_t step;
  int64_t count;  // of the `whole`
  int32_t type;   // likewise; -1: there is none
  int32_t op;
  int32_t root;  // -1: there is none
  int32_t peer;  // likewise
};

// Returns the error text for two ranks that call different operations.
std::string different_operations(const std::string& who, const OperationLabel& label,
                                 const std::string& other, const OperationLabel& theirs);

// The end of error texts about sizes.
inline constexpr std::string_view kSameEverywhere = ": every rank has to give the same root and sizes";

// Returns the error text for a message that is not what the receiver expects; "" if it is.
std::string other_message(const std::string& receiver, const OperationLabel& expected,
                          const std::string& sender, const OperationLabel& sent);

// Returns a text such as "all_reduce of gradients at step 118".
std::string describe(const Operation& operation);

// Returns another possible reason why a rank is missing, for error messages: outside steps, programs often
// let only some ranks make a call that all must make. Returns "" in steps, which all ranks begin together.
std::string_view why_not_there(const Operation& operation);

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class Failures;

// Moves flat tensors among the ranks of a group and adds them: a Transport through the memory of hosts, an
// OnDevice directly from device to device. Arithmetic, types and order are the same everywhere. Throws the
// same errors as Communicator, without the name of the operation. One thread at a time may call it.
//
// Whatever is not pure virtual is made of exchanges here. Others do it with fewer bytes, messages or copies.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Sends sends[r] to rank r and receives recvs[r] from it, for all ranks at once. Copies this rank's own.
  virtual void exchange_tensors(std::span<const torch::Tensor> sends, std::span<const torch::Tensor> recvs,
                                const Operation& operation) = 0;
  // Computes the sums, one after the other. Afterwards this rank has its results, and may overwrite its
  // inputs.
  virtual void combine(std::span<const SlicedSum> sums, const Operation& operation);
  // `outputs` is indexed by rank; this rank contributes `input`.
  virtual void all_gather(std::span<const torch::Tensor> outputs, const torch::Tensor& input,
                          const Operation& operation);
  virtual void broadcast(const torch::Tensor& values, int root, const Operation& operation);

  // Makes every rank throw this text from now on, unless the group has already failed.
  virtual void abandon(const std::string& text) = 0;

 protected:
  // Adds the values of all ranks in place, with an all-reduce of the library that moves them. Returns false
  // if it has none for this type.
  virtual bool add_in_any_order(const torch::Tensor& /*flat*/, const Operation& /*operation*/) {
    return false;
  }
  // Returns false if Operation::any_order is false, or there is no fitting all-reduce.
  bool combine_in_any_order(const SlicedSum& sum, const Operation& operation);
  void combine_by_exchange(const SlicedSum& sum, const Operation& operation);
};

// One part of memory per rank, all of the same size, which all ranks can access.
struct SharedRegion {
  std::vector<std::byte*> parts;  // by rank
  size_t size = 0;
  std::shared_ptr<void> memory;  // keeps the memory alive
};

// A transport has this if all its ranks share memory.
class SharedRegions {
 public:
  virtual ~SharedRegions() = default;
  // Returns memory filled with zeros. Every rank must call this with the same size.
  virtual SharedRegion allocate(size_t size, const Operation& operation) = 0;
  // Returns the bytes of all ranks that correspond to these, or no parts if they are not from allocate().
  virtual SharedRegion everyones(const std::byte* mine, size_t size) const = 0;
  // The ranks of this transport are these ranks of `failures`, and fail together with all of its ranks from
  // now on. It must outlive this object, and enforces the deadlines: a rank must not blame a rank of its host
  // that is itself waiting for another host.
  virtual void join(Failures& failures, std::vector<int> ranks) = 0;
};

class Transport;

// A transport has this if only the ranks of a host share memory.
class TwoLevels {
 public:
  virtual ~TwoLevels() = default;
  virtual const RankLayout& layout() const = 0;
  // Returns another group of this host's ranks, which has SharedRegions. It fails together with the whole
  // group.
  virtual std::unique_ptr<Transport> inside() = 0;
};

// The part that each backend implements: it moves bytes between ranks. Other threads than the one that calls
// the Carrier may call send() and recv() meanwhile, one for each peer and direction.
class Transport : public Carrier {
 public:
  // Sends sends[r] to rank r and receives recvs[r] from it, for all ranks at once. A message must be as long
  // as the receiver expects; it may be empty. This rank's own pair is ignored.
  virtual void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                        const Operation& operation) = 0;
  virtual void send(ConstBytes bytes, int to, const Operation& operation) = 0;
  virtual void recv(Bytes bytes, int from, const Operation& operation) = 0;
  // Waits for all ranks.
  virtual void sync(const Operation& operation);

  // Returns the group of these ranks, in this order. They must include this rank. `name` must be unique.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;

  // Return nullptr if the transport does not have it.
  virtual SharedRegions* shared_regions() { return nullptr; }
  virtual TwoLevels* two_levels() { return nullptr; }
  virtual Failures* failures() { return nullptr; }  // through which the ranks fail together

  void exchange_tensors(std::span<const torch::Tensor> sends, std::span<const torch::Tensor> recvs,
                        const Operation& operation) final;
  void combine(std::span<const SlicedSum> sums, const Operation& operation) override;
};

// Records what an exchange over a network spends its time on, as long as the result exists.
SpanScope span_of_exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                           const Operation& operation);

// Used next to a transport with the same ranks if their devices can reach one another: moves the tensors on
// these devices, and no others, without passing them through host memory. Runs after all work already
// enqueued on the device; work enqueued afterwards sees the received values.
class OnDevice : public Carrier {
 public:
  // Returns true if the tensor is on the device whose tensors it moves.
  virtual bool takes(const torch::Tensor& tensor) const = 0;
};

}  // namespace tutti::comm
