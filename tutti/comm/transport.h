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
  int root = -1;  // of a broadcast, gather or scatter
  int peer = -1;  // of a send or recv: the other rank
};

// Returns an operation that begins now. Its timeout is that of `options`, or `usual` if they have none.
Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline = nullptr);

// Returns a copy of the operation with this `whole` and root.
inline Operation of(Operation operation, const Reduction& whole, int root = -1) {
  operation.whole = whole;
  operation.root = root;
  return operation;
}

// Hashes what all ranks must agree on: the operation's name and root, and the element type, count and
// reduction.
uint64_t key_of(const Operation& operation);

// An operation in words that can be copied between ranks, for error messages.
struct OperationWords {
  explicit OperationWords(const Operation& operation);
  OperationWords() = default;
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
std::string different_operations(const std::string& who, const OperationWords& words,
                                 const std::string& other, const OperationWords& theirs);

// The end of error texts about sizes.
inline constexpr std::string_view kSameEverywhere = ": every rank has to give the same root and sizes";

// Returns the error text for a message that is not what the receiver expects; "" if it is.
std::string other_message(const std::string& receiver, const OperationWords& expected,
                          const std::string& sender, const OperationWords& sent);

// Returns a text such as "all_reduce of gradients at step 118".
std::string describe(const Operation& operation);

// Returns another possible reason why a rank is missing, for error messages: outside steps, programs often
// let only some ranks make a call that all must make. Returns "" in steps, which all ranks begin together.
std::string_view why_not_there(const Operation& operation);

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class AddsOnTheWay;
class ByHost;
class FailureBoard;
class InPlace;
class OwnAllReduce;

// A transport states here what it can do besides moving bytes. Whatever is null, Collectives does by
// exchanges.
struct Abilities {
  InPlace* in_place = nullptr;  // all ranks share memory
  ByHost* by_host = nullptr;    // the ranks of a host do
  AddsOnTheWay* adds_on_the_way = nullptr;
  OwnAllReduce* own_all_reduce = nullptr;
  FailureBoard* board = nullptr;  // through which the ranks fail together; null in a world of one
};

// The part that each backend implements: it moves bytes between ranks. Arithmetic, types, layouts and order
// are the same for all backends (collectives.h). Throws the same errors as Communicator, without the name of
// the operation. One thread at a time calls exchange(). Meanwhile other threads, one for each peer and
// direction, may call send() and recv().
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual Abilities abilities() { return {}; }

  // Sends sends[r] to rank r and receives recvs[r] from it, for all ranks at once. A message must be as long
  // as the receiver expects; it may be empty. This rank's own pair is ignored.
  virtual void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                        const Operation& operation) = 0;
  virtual void send(ConstBytes bytes, int to, const Operation& operation) = 0;
  virtual void recv(Bytes bytes, int from, const Operation& operation) = 0;

  // Makes every rank throw this text from now on, unless the group has already failed.
  virtual void abandon(const std::string& text) = 0;

  // Returns the group of these ranks, in this order. They must include this rank. `name` must be unique.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

// A combination of inputs of all ranks, of which every rank computes one slice.
struct SlicedSum {
  Reduction reduction;  // of all elements
  const Program& program;
  std::span<const int> holders;  // by input of the program: the rank that has it, ascending; -1: unused
  std::span<const std::byte* const> inputs;  // those of this rank, in order
  std::span<const Slice> slices;             // by rank
  std::byte* own;                            // receives the result of this rank's slice
  // If not null, receives the results of all slices, and contains `own`. It may be one of the inputs.
  std::byte* whole;
};

// A transport has this if it can combine pieces of the inputs while others are still on their way.
class AddsOnTheWay {
 public:
  virtual ~AddsOnTheWay() = default;
  virtual void add(const SlicedSum& sum, const Operation& operation) = 0;
};

// One part of memory per rank, all of the same size, which all ranks can access.
struct SharedBlock {
  std::vector<std::byte*> parts;  // by rank
  size_t size = 0;
  std::shared_ptr<void> memory;  // keeps the memory alive
};

// A transport has this if all its ranks share memory.
class InPlace {
 public:
  virtual ~InPlace() = default;
  // Returns memory filled with zeros. Every rank must call this with the same size.
  virtual SharedBlock allocate(size_t size, const Operation& operation) = 0;
  // Returns the bytes of all ranks that correspond to these, or no parts if they are not from allocate().
  virtual SharedBlock everyones(const std::byte* mine, size_t size) const = 0;
  virtual void sync(const Operation& operation) = 0;
  virtual void all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) = 0;
};

// A transport has this if only the ranks of a host share memory. It sends data that all ranks of a host need
// to the host once. Sums have the same bits as without it.
class ByHost {
 public:
  virtual ~ByHost() = default;
  virtual const RankLayout& layout() const = 0;
  // Returns another group of this host's ranks, which is InPlace. It fails together with the whole group.
  virtual std::unique_ptr<Transport> inside() = 0;

  virtual void all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) = 0;
  // The reduction's count is that of the output; the input has as many elements for each rank.
  virtual void reduce_scatter(std::byte* output, const std::byte* input, const Reduction& reduction,
                              const Operation& operation) = 0;
  // `outputs` is indexed by rank; this rank contributes `input`.
  virtual void all_gather(std::span<const Bytes> outputs, ConstBytes input, const Operation& operation) = 0;
  virtual void broadcast(Bytes bytes, int root, const Operation& operation) = 0;
  virtual void sync(const Operation& operation) = 0;
};

// A transport has this if its library has an all-reduce of its own, which adds in the order it finds fastest.
class OwnAllReduce {
 public:
  virtual ~OwnAllReduce() = default;
  // Returns true if it supports this type.
  virtual bool adds(torch::ScalarType type) const = 0;
  virtual void add_all(const torch::Tensor& flat, const Operation& operation) = 0;
};

// Used next to a transport with the same ranks if their devices can reach one another: moves the tensors on
// these devices, and no others, without passing them through host memory. Only one thread at a time may
// call it.
class OnDevice : public OwnAllReduce {
 public:
  virtual std::string name() const = 0;
  // Returns true if the tensor is on the device whose tensors it moves.
  virtual bool takes(const torch::Tensor& tensor) const = 0;
  // Like Transport::exchange(), for contiguous tensors. Runs after all work already enqueued on the device;
  // work enqueued afterwards sees the received values.
  virtual void exchange(std::span<const torch::Tensor> sends, std::span<const torch::Tensor> recvs,
                        const Operation& operation) = 0;
  virtual void abandon(const std::string& text) = 0;
};

}  // namespace tutti::comm
