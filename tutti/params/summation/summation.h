#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/reduce.h"
#include "tutti/params/buckets.h"
#include "tutti/params/control_word.h"

namespace tutti {

// The results of this worker's lanes for one bucket: one stretch per subtree. The last of them is in the
// bucket itself.
using Subtrees = std::vector<TreeSum::Subtree>;

struct SummationOptions {
  // The type to which gradients are rounded before they are sent; undefined: no rounding.
  torch::ScalarType wire = torch::ScalarType::Undefined;
  // Adds the rounding error of a gradient to the next gradient of the same worker.
  bool error_feedback = true;
  // Gives each worker only its own part of the sum of gradients.
  bool scatter = false;
};

// The residuals of rounding on one worker, which are added to the next gradients: vectors as long as those of
// the buckets, used for the buckets that hold gradients.
struct Residuals {
  using Vectors = std::vector<torch::Tensor>;
  std::vector<Vectors> subtrees = {};  // of what this worker sends
  Vectors sums = {};                   // of the sums that it hands out; zero outside of its part
};

// Adds the values that the workers hold and leaves the sum in the vectors of all workers. In a step, call
// show() for every bucket, then words(), read them, then add() for every bucket, then end(). All workers have
// to make the same calls in the same order; one thread at a time.
class Summation {
 public:
  virtual ~Summation() = default;
  // The name in the report: "tree", ...
  virtual std::string name() const = 0;
  // Returns true if sums may be sent while others are still being computed, which gains time.
  virtual bool overlaps() const = 0;

  // Makes the subtrees that are not in the bucket itself visible to the other workers.
  virtual void show(size_t /*bucket*/, const Subtrees& /*subtrees*/) {}
  // Returns the words of all workers, by rank. `own` is that of this worker.
  virtual std::vector<torch::Tensor> words(const torch::Tensor& own, int64_t step) = 0;
  // Computes the sum, divided by `divisor` (0: no division). It is then in the bucket of every worker or, if
  // it is scattered, in the worker's own part of it.
  virtual void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) = 0;
  // Ends the step. Afterwards subtrees that were shown may be overwritten.
  virtual void end(int64_t /*step*/) {}

  // Returns a copy of the residuals, between two steps; nullopt without rounding or error feedback.
  virtual std::optional<Residuals> residuals() { return std::nullopt; }
  // Sets the residuals of this worker, saved with the same rank and number of workers.
  virtual void set_residuals(const Residuals& /*residuals*/) {}

  // Distributes every worker's own part of the buckets to all; `vectors` are as long as those of the buckets.
  virtual void spread(const std::vector<torch::Tensor>& vectors, int64_t step) = 0;
};

// The fixed tree over the lanes, in memory that all workers share: each worker reads its part of every bucket
// from the vectors of all workers, adds it, and writes the sum back to all of them.
std::unique_ptr<Summation> sum_in_memory(comm::Communicator& comm, const Buckets& buckets,
                                         const ControlWord& word, const SummationOptions& options);
// Adds along the same tree over any communicator: workers send one another their parts and get sums back.
std::unique_ptr<Summation> sum_by_exchange(comm::Communicator& comm, const Buckets& buckets,
                                           const ControlWord& word, const SummationOptions& options);
// Adds along the same tree if the ranks of each host share memory (comm::Hosts) and the vectors are in it:
// values that are added within a host cross the network once.
std::unique_ptr<Summation> sum_by_hosts(comm::Communicator& comm, const Buckets& buckets,
                                        const ControlWord& word, const SummationOptions& options);
// Uses the communicator's own all-reduce, which adds in any order. Each worker holds one sum.
std::unique_ptr<Summation> sum_by_all_reduce(comm::Communicator& comm, const Buckets& buckets);

// The functions and classes below are shared by the summations.

// Returns the reduction that adds `count` elements of a step in the way TreeSum adds them.
inline comm::Reduction sum_of(torch::ScalarType type, int64_t count, double divisor = 0) {
  return {.type = type,
          .op = comm::ReduceOp::Sum,
          .count = count,
          .divisor = divisor,
          .parts = 0,
          .round_each = true};
}

// Returns the address of an element of a vector.
inline std::byte* bytes_at(const torch::Tensor& vector, int64_t element) {
  return static_cast<std::byte*>(vector.data_ptr()) + element * static_cast<int64_t>(vector.element_size());
}

// Returns the control word of every rank, if they do not all share memory.
std::vector<torch::Tensor> gather_words(comm::Communicator& comm, const torch::Tensor& word, int64_t step);

// Rounds a stretch of gradients to fewer bits before it is sent, and adds the rounding error to the next
// stretch, so that nothing is lost over many steps (error feedback). Not thread-safe.
class Rounding {
 public:
  Rounding(torch::ScalarType to, bool keep) : to_(to), keep_(keep) {}

  // Every stretch has the same length. A value beyond the range of the type becomes its largest number.
  torch::Tensor round(const torch::Tensor& exact);

  // The error that is added to the next stretch; undefined if there is none yet.
  const torch::Tensor& lost() const { return lost_; }
  void set_lost(torch::Tensor lost) { lost_ = std::move(lost); }

 private:
  const torch::ScalarType to_;
  const bool keep_;
  torch::Tensor lost_;
};

// The vectors of ranks that share memory: the inputs of the sums over them, and where the sums are written.
class SharedInputs {
 public:
  // `first_rank` is the first of the ranks that share this memory.
  SharedInputs(comm::SharedVectors& shared, const Buckets& buckets, const ControlWord& word,
               int first_rank = 0);

  // Makes the subtrees that are not in the bucket visible to the other ranks: all but the last.
  void show(const Bucket& bucket, const Subtrees& subtrees) const;
  // Returns the addresses of this element of a vector in all sources.
  std::vector<const std::byte*> inputs(size_t vector, int64_t element) const;
  // Returns the addresses of this element in the vectors of all ranks, or only in that of rank `only`.
  std::vector<std::byte*> outputs(size_t vector, int64_t element, std::optional<int> only) const;
  // Returns this vector of every rank.
  const std::vector<torch::Tensor>& everyones(size_t vector) const { return vectors_[vector].everyones; }

 private:
  using Tensors = std::vector<torch::Tensor>;

  struct Vector {
    Tensors extras;     // [subtree] of this rank, all but the last
    Tensors inputs;     // [source]
    Tensors everyones;  // [rank]
  };
  std::vector<Vector> vectors_;
};

// Copies a slice of one rank's vector to the vectors of all other ranks.
void copy_to_all(const std::vector<torch::Tensor>& everyones, int from, const comm::Slice& slice);

}  // namespace tutti
