#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/base/timeline.h"
#include "tutti/comm/sliced_sum.h"
#include "tutti/transport/epochs.h"
#include "tutti/transport/operation.h"
#include "tutti/transport/work.h"

namespace tutti::comm {

struct Hosts;  // hosts.h

// Vectors in memory that all ranks of one host share.
class SharedVectors {
 public:
  virtual ~SharedVectors() = default;
  // Returns zeros that every rank can read and write in place. All must call this with the same arguments.
  virtual torch::Tensor allocate(int64_t elements, torch::ScalarType type) = 0;
  // Returns the vectors of all ranks that correspond to `mine` (allocated by the same call, and the same part
  // of it), in rank order. Copies nothing. Throws InvalidArgument if `mine` is not part of a shared vector.
  virtual std::vector<torch::Tensor> everyones(const torch::Tensor& mine) = 0;
  // Waits for all ranks. Afterwards each rank sees everything that the others wrote before this call.
  virtual void sync(const Options& options = {}) = 0;
};

// A group of ranks that move tensors among themselves. Every rank must call the same operations in the same
// order, except send and recv, which involve two ranks. Operations run in that order, one at a time. Tensors
// may be strided or empty, on the CPU or on a GPU, of float32/64, bfloat16, float16, complex64/128, int8 to
// int64, uint8 or bool; types and sizes must match across the ranks. A rank's input and output may share
// memory if one is the rank's own part of the other; in all_to_all they may overlap in any way. If a rank's
// input is on_device(), the inputs of all ranks must be.
//
// An error that can be detected at once is an InvalidArgument and changes nothing. A late rank causes a
// Timeout, a lost rank a PeerLost. Both name the rank, all ranks get the same text, and the communicator is
// broken from then on: every later call throws the same error. Sums are added along a fixed tree over the
// ranks, so that they have the same bits over every backend.
//
// Thread-compatible: only one thread at a time may call the operations.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // "shm", "tcp", ...
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Returns true if collectives move and add this tensor on its device instead of in host memory. Always
  // false for tensors on the CPU (except in tests).
  virtual bool on_device(const torch::Tensor& tensor) const = 0;
  // Returns the timeline that records the operations, or nullptr if there is none.
  virtual Timeline* timeline() const = 0;

  // In place.
  virtual Work all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options = {}) = 0;
  // Splits `input` into one part per rank, along its first dimension; `output` is the sum of part rank().
  virtual Work reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                              const Options& options = {}) = 0;
  // Computes sums of any number of inputs per rank, in a given order, one after the other. They must exist
  // until the operation has ended.
  virtual Work combine(std::span<const SlicedSum> sums, const Options& options = {}) = 0;
  // Concatenates along the first dimension, in rank order; the uneven form has one output per rank.
  virtual Work all_gather(const torch::Tensor& output, const torch::Tensor& input,
                          const Options& options = {}) = 0;
  virtual Work all_gather_uneven(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                                 const Options& options = {}) = 0;
  // Sends part r of `input` to rank r, and receives that rank's part for this rank as part r of `output`.
  virtual Work all_to_all(const torch::Tensor& output, const torch::Tensor& input,
                          const Options& options = {}) = 0;
  virtual Work all_to_all_uneven(const std::vector<torch::Tensor>& outputs,
                                 const std::vector<torch::Tensor>& inputs, const Options& options = {}) = 0;
  // In place, from the root.
  virtual Work broadcast(const torch::Tensor& tensor, int root, const Options& options = {}) = 0;
  // Only the root uses `output`, and in scatter only the root uses `input`.
  virtual Work gather(const torch::Tensor& output, const torch::Tensor& input, int root,
                      const Options& options = {}) = 0;
  virtual Work scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
                       const Options& options = {}) = 0;
  // Messages between two ranks arrive in the order in which they were sent. Both always run behind, so that
  // two ranks may send to each other.
  virtual Work send(const torch::Tensor& tensor, int to, const Options& options = {}) = 0;
  virtual Work recv(const torch::Tensor& tensor, int from, const Options& options = {}) = 0;
  virtual Work barrier(const Options& options = {}) = 0;

  // Returns nullptr unless all ranks share memory.
  virtual SharedVectors* shared() = 0;
  // Returns nullptr unless some, but not all, ranks share memory and each host's ranks are contiguous.
  virtual const Hosts* hosts() = 0;

  // Announces that this rank gives up, and why: the others fail with this text instead of reporting a lost
  // peer. Does not throw and does not wait. Every later call throws.
  virtual void abandon(const std::string& why) noexcept = 0;

  // Ranks that pass the same colour form a group, in the order of their ranks here. Returns nullptr for
  // colour -1. Every rank must call this.
  virtual std::unique_ptr<Communicator> split(int colour) = 0;

  // Returns nullptr unless the ranks may change.
  virtual Epochs* epochs() { return nullptr; }
  // Leaves the present ranks, because of this error or, without one, because a change is due, and connects to
  // the ranks of the next epoch, who all call this. Rank and world are other ones afterwards. Vectors in
  // memory that the former ranks shared stay, but their other owners may be gone; communicators that were
  // split from this one stay broken. Throws the PeerLost for which the job ends, or this worker has no place
  // any more.
  virtual void reconfigure(const std::optional<Error>& why);
};

// Something that needs all workers, such as a module that uses the examples of all of them. The code that
// trains a model passes the group to its modules (give_group() in params/plan.h).
class UsesCommunicator {
 public:
  virtual ~UsesCommunicator() = default;
  // Sets the group of all workers, which only such modules use. They share it with the state that their
  // forward pass keeps for the backward pass. Replaces the previous group; nullptr means no other workers.
  virtual void use(std::shared_ptr<Communicator> group) = 0;
};

}  // namespace tutti::comm
