#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/buckets.h"
#include "tutti/params/control_word.h"

namespace tutti {

// The results of this worker's lanes for one bucket: one stretch per subtree. The last of them is in the
// bucket itself.
using Subtrees = std::vector<TreeSum::Subtree>;

// Returns the reduction that adds `count` elements of a step in the way TreeSum adds them.
inline comm::Reduction sum_of(torch::ScalarType type, int64_t count, double divisor = 0) {
  return {.type = type,
          .op = comm::ReduceOp::Sum,
          .count = count,
          .divisor = divisor,
          .parts = 0,
          .round_each = true};
}

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
  // Returns the vector into which this worker's word is written.
  virtual torch::Tensor word() = 0;
  // Returns the words of all workers, by rank.
  virtual std::vector<torch::Tensor> words(int64_t step) = 0;
  // Computes the sum, divided by `divisor` (0: no division). It is then in the bucket of every worker or, if
  // it is scattered, in the worker's own part of it.
  virtual void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) = 0;
  // Ends the step. Afterwards subtrees that were shown may be overwritten.
  virtual void end(int64_t /*step*/) {}

  // Returns a copy of the residuals, between two steps; nullopt without rounding or error feedback.
  virtual std::optional<Residuals> residuals() const { return std::nullopt; }
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
std::unique_ptr<Summation> sum_by_all_reduce(comm::Communicator& comm, const Buckets& buckets,
                                             const ControlWord& word);

}  // namespace tutti
