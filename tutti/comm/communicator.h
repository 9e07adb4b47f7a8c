#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/timeline.h"
#include "tutti/comm/work.h"

namespace tutti::comm {

struct Hosts;  // hosts.h

// Of booleans, Sum is "any" and Product is "all"; Average is for floating types alone.
enum class ReduceOp { Sum, Average, Min, Max, Product };

enum class Run {
  Here,    // in the calling thread: done, or thrown, when the call returns
  Behind,  // in a thread of the communicator: the call returns at once
};

struct Options {
  std::chrono::milliseconds timeout{0};  // 0: the communicator's
  Run run = Run::Here;
  bool any_order = false;  // all_reduce may add in the order that is fastest, whatever the bits
  // For error messages: what is moved, and in which step. The text outlives the operation.
  const char* what = "";
  int64_t step = -1;
};

// Vectors that all ranks of one host have in memory together.
class SharedVectors {
 public:
  virtual ~SharedVectors() = default;
  // One of zeros, which every rank can read and write in place. Every rank calls it, alike.
  virtual torch::Tensor allocate(int64_t elements, torch::ScalarType type) = 0;
  // The vectors of all ranks that belong to `mine`: allocated by the same call, and the same part of it. In
  // rank order, without mine being copied. Not a part of one: InvalidArgument.
  virtual std::vector<torch::Tensor> everyones(const torch::Tensor& mine) = 0;
  // All ranks are here, and each sees what the others have written before.
  virtual void sync(const Options& options = {}) = 0;
};

// A group of ranks that move tensors among themselves. Every rank calls the same operations in the same
// order; only send and recv are between two. They are carried out in that order, one after the other. Tensors
// may be strided or empty, on the CPU or on a GPU, of float32/64, bfloat16, float16, int32/64, uint8 or bool;
// types and sizes have to fit across the ranks. What a rank gives and what it receives may share memory where
// the one is its own part of the other, and in all_to_all in any way. Where what a rank gives is on_device(),
// so it is at all ranks.
//
// What can be seen at once is an InvalidArgument and changes nothing. A rank that is late is a Timeout, one
// that is gone a PeerLost; both name it, all ranks get the same text, and the communicator is broken from
// then on: every later call throws the same. Sums are added along a fixed tree over the ranks, so that they
// have the same bits over every backend.
//
// Thread-compatible: one thread at a time calls the operations.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // "shm", "gloo", ...
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // Whether collectives move a tensor, and add it, where it is, instead of in the memory of the host. Not
  // those on the CPU (but for tests).
  virtual bool on_device(const torch::Tensor& tensor) const = 0;
  // Where its operations are noted down; null where nobody asked for it.
  virtual Timeline* timeline() const = 0;

  // In place.
  virtual Work all_reduce(const torch::Tensor& tensor, ReduceOp op, const Options& options = {}) = 0;
  // `input` is cut into one part a rank, along its first dimension; `output` is this rank's part of the sum.
  virtual Work reduce_scatter(const torch::Tensor& output, const torch::Tensor& input, ReduceOp op,
                              const Options& options = {}) = 0;
  // Along the first dimension, in rank order; the uneven form has a tensor for each rank.
  virtual Work all_gather(const torch::Tensor& output, const torch::Tensor& input,
                          const Options& options = {}) = 0;
  virtual Work all_gather_uneven(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                                 const Options& options = {}) = 0;
  // Part r of `input` goes to rank r, whose part for this one arrives as part r of `output`.
  virtual Work all_to_all(const torch::Tensor& output, const torch::Tensor& input,
                          const Options& options = {}) = 0;
  virtual Work all_to_all_uneven(const std::vector<torch::Tensor>& outputs,
                                 const std::vector<torch::Tensor>& inputs, const Options& options = {}) = 0;
  // In place, from the root.
  virtual Work broadcast(const torch::Tensor& tensor, int root, const Options& options = {}) = 0;
  // `output` counts at the root alone, as `input` does in scatter.
  virtual Work gather(const torch::Tensor& output, const torch::Tensor& input, int root,
                      const Options& options = {}) = 0;
  virtual Work scatter(const torch::Tensor& output, const torch::Tensor& input, int root,
                       const Options& options = {}) = 0;
  // Between two ranks messages arrive in the order in which they were sent. Always behind: a rank may send
  // to one that sends to it.
  virtual Work send(const torch::Tensor& tensor, int to, const Options& options = {}) = 0;
  virtual Work recv(const torch::Tensor& tensor, int from, const Options& options = {}) = 0;
  virtual Work barrier(const Options& options = {}) = 0;

  // nullptr where the ranks do not share memory.
  virtual SharedVectors* shared() = 0;
  // nullptr where it makes nothing of it which ranks share memory: all do, none do, or they are mixed.
  virtual const Hosts* hosts() = 0;

  // This rank goes no further, and why: all others hear of it in place of a peer that is gone. Does not throw
  // and does not wait; what is called afterwards throws.
  virtual void abandon(const std::string& why) noexcept = 0;

  // Ranks that give the same colour form a group, in the order of their ranks here. Colour -1: none, and
  // nullptr. Every rank calls it.
  virtual std::unique_ptr<Communicator> split(int colour) = 0;
};

}  // namespace tutti::comm
