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
#include "tutti/transport/array.h"
#include "tutti/transport/operation.h"
#include "tutti/transport/rank_layout.h"
#include "tutti/transport/reduce.h"

namespace tutti::comm {

class Failures;

// Moves arrays among the ranks of a group and adds them: a Transport through the memory of hosts, others
// directly from device to device. Arithmetic, types and order are the same everywhere. Throws the same errors
// as Ranks, without the name of the operation. One thread at a time may call it.
//
// Whatever is not pure virtual is made of exchanges here. Others do it with fewer bytes, messages or copies.
class Carrier {
 public:
  virtual ~Carrier() = default;
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Sends sends[r] to rank r and receives recvs[r] from it, for all ranks at once. Copies this rank's own.
  virtual void exchange_arrays(std::span<const Array> sends, std::span<const Array> recvs,
                               const Operation& operation) = 0;
  // Computes the sums, one after the other. Afterwards this rank has its results, and may overwrite its
  // inputs.
  virtual void combine(std::span<const ArraySum> sums, const Operation& operation);
  // `outputs` is indexed by rank; this rank contributes `input`.
  virtual void all_gather(std::span<const Array> outputs, const Array& input, const Operation& operation);
  virtual void broadcast(const Array& values, int root, const Operation& operation);

  // Makes every rank throw this text from now on, unless the group has already failed.
  virtual void abandon(const std::string& text) = 0;

  // Memory where this carrier's arrays are, as long as the result lives.
  virtual std::shared_ptr<std::byte> memory_for(size_t size) const;
  virtual void copy(const Array& from, const Array& to) const;
  // Combines arrays, as reduce() does. Inputs that the program does not use may be none.
  virtual void combine_here(std::span<const Array> inputs, const Array& output, const Reduction& reduction,
                            const Program& program) const;

 protected:
  // Adds the values of all ranks in place, with an all-reduce of the library that moves them. Returns false
  // if it has none for this type.
  virtual bool add_in_any_order(const Array& /*values*/, const Operation& /*operation*/) { return false; }
  // Returns false if Operation::any_order is false, or there is no fitting all-reduce.
  bool combine_in_any_order(const ArraySum& sum, const Operation& operation);
  void combine_by_exchange(const ArraySum& sum, const Operation& operation);
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
  // Waits for the next message from this rank, which recv() then receives, and returns its label.
  virtual OperationLabel await_message(int from, const Operation& operation) = 0;
  // Returns the same, or nullopt if none has come.
  virtual std::optional<OperationLabel> next_message(int from) = 0;
  // Returns true if this rank has closed its end in good order, so that no more messages will come from it
  // than have come. A transport whose ranks close together need not know.
  virtual bool has_left(int /*rank*/) { return false; }
  // Waits for all ranks.
  virtual void sync(const Operation& operation);
  // This rank has completed an operation of all ranks, for their error messages.
  virtual void completed() {}
  // Returns what is known of a rank, for error messages: "worker/1 is gone; it was last seen in barrier".
  // Returns
  // "" if nothing is.
  virtual std::string known_of(int /*rank*/) { return ""; }

  // Returns the group of these ranks, in this order. They must include this rank. `name` must be unique.
  virtual std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) = 0;

  // Return nullptr if the transport does not have it.
  virtual SharedRegions* shared_regions() { return nullptr; }
  virtual TwoLevels* two_levels() { return nullptr; }
  virtual Failures* failures() { return nullptr; }  // through which the ranks fail together

  void exchange_arrays(std::span<const Array> sends, std::span<const Array> recvs,
                       const Operation& operation) final;
  void combine(std::span<const ArraySum> sums, const Operation& operation) override;
};

// Records what an exchange over a network spends its time on, as long as the result exists.
SpanScope span_of_exchange(std::span<const ConstBytes> sends, std::span<const Bytes> recvs,
                           const Operation& operation);

}  // namespace tutti::comm
