#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/timeline.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/hosts.h"
#include "tutti/comm/reduce.h"

namespace tutti::comm {

// What is being done, and until when.
struct Operation {
  const char* name;  // "all_reduce"
  const char* what;
  int64_t step;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout;
  Timeline* timeline = nullptr;  // where it is noted down
};

// One that began now, within its own timeout or else `usual`.
Operation operation_of(const char* name, const Options& options, std::chrono::milliseconds usual,
                       Timeline* timeline = nullptr);

// "all_reduce of gradients at step 118".
std::string describe(const Operation& operation);

// What else may keep a rank from it: outside of steps it is often a program that lets some ranks alone call
// what all have to. "" in steps, which begin together.
std::string_view why_not_there(const Operation& operation);

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// What a backend is made of: it moves bytes between ranks. Everything else, arithmetic, types, layouts and
// order, is the same for all of them (collectives.h). Errors are those of Communicator, without the name of
// the operation. exchange() is called by one thread at a time; send() and recv() by others, one for each peer
// and direction, meanwhile.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // sends[r] goes to rank r, and recvs[r] comes from it, for all ranks at once. What goes to a rank is as
  // long as what it expects; nothing at all is fine. This rank's own pair is left alone.
  virtual void exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                        const Operation& operation) = 0;
  virtual void send(ConstBytes bytes, int to, const Operation& operation) = 0;
  virtual void recv(Bytes bytes, int from, const Operation& operation) = 0;

  // What every rank throws from now on, unless the group has failed before.
  virtual void abandon(const std::string& text) = 0;

  // The group of these ranks of ours, this one among them, in this order. `name` is not used twice.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;
};

// Memory of one size at every rank, seen by all.
struct SharedBlock {
  std::vector<std::byte*> parts;  // by rank
  size_t size = 0;
  std::shared_ptr<void> memory;  // for as long as somebody holds it
};

// What a transport does besides whose ranks see one another's memory.
class InPlace {
 public:
  virtual ~InPlace() = default;
  // Zeros. Every rank calls it, with one size.
  virtual SharedBlock allocate(size_t size, const Operation& operation) = 0;
  // The ranks' counterparts of these bytes; no parts if allocate() did not give them.
  virtual SharedBlock everyones(const std::byte* mine, size_t size) const = 0;
  virtual void sync(const Operation& operation) = 0;
  virtual void all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) = 0;
};

// What a transport does besides some of whose ranks see one another's memory, and some do not: what all of a
// host need comes to it once. Sums have the same bits as without.
class ByHost {
 public:
  virtual ~ByHost() = default;
  virtual const Placement& placement() const = 0;
  // One more group of the ranks of this host, in place. It fails with all.
  virtual std::unique_ptr<Transport> inside() = 0;

  virtual void all_reduce(std::byte* data, const Reduction& reduction, const Operation& operation) = 0;
  // So many elements of the output; the input has as many for each rank.
  virtual void reduce_scatter(std::byte* output, const std::byte* input, const Reduction& reduction,
                              const Operation& operation) = 0;
  // By rank; what comes from this one is the input.
  virtual void all_gather(std::span<const Bytes> outputs, ConstBytes input, const Operation& operation) = 0;
  virtual void broadcast(Bytes bytes, int root, const Operation& operation) = 0;
  virtual void sync(const Operation& operation) = 0;
};

// What a transport does besides that adds by itself, in the order that is fastest for it.
class OwnAllReduce {
 public:
  virtual ~OwnAllReduce() = default;
  // Whether it knows how.
  virtual bool adds(torch::ScalarType type) const = 0;
  virtual void add_all(const torch::Tensor& flat, const Operation& operation) = 0;
};

// What stands beside a transport and has the same ranks, where their tensors are on devices that reach one
// another: it moves these tensors, and those alone, without passing through the memory of the hosts. One
// thread at a time calls it.
class OnDevice : public OwnAllReduce {
 public:
  virtual std::string name() const = 0;
  // Whether a tensor is where it moves them.
  virtual bool takes(const torch::Tensor& tensor) const = 0;
  // As Transport::exchange(), of contiguous tensors. What has been enqueued on the device before comes first,
  // and what is enqueued afterwards finds what has come.
  virtual void exchange(std::span<const torch::Tensor> sends, std::span<const torch::Tensor> recvs,
                        const Operation& operation) = 0;
  virtual void abandon(const std::string& text) = 0;
};

}  // namespace tutti::comm
