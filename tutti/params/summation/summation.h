#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/buckets.h"
#include "tutti/params/control_word.h"

namespace tutti {

// What this worker's lanes gave of one bucket: one stretch a subtree. The last of them is in the bucket
// itself.
using Subtrees = std::vector<TreeSum::Subtree>;

// How so many elements of a step are added, wherever that is done: as TreeSum adds them.
inline comm::Reduction sum_of(torch::ScalarType type, int64_t count, double divisor = 0) {
  return {.type = type,
          .op = comm::ReduceOp::Sum,
          .count = count,
          .divisor = divisor,
          .parts = 0,
          .round_each = true};
}

struct SummationOptions {
  // Gradients are rounded to it before they are sent; undefined: sent as they are.
  torch::ScalarType wire = torch::ScalarType::Undefined;
  // What rounding has taken from a gradient is added to the next one of the same worker.
  bool error_feedback = true;
  // Each worker gets its own part of the sum of gradients alone.
  bool scatter = false;
};

// How what each of the workers holds becomes one sum in the vectors of all. In a step: show() for every
// bucket, words(), and, once they are read, add() for every bucket, then end(). All workers call the same, in
// the same order; one thread at a time.
class Summation {
 public:
  virtual ~Summation() = default;
  // For the report: "tree", ...
  virtual std::string name() const = 0;
  // Whether sums may be sent while others are still being made. If not, there is nothing to gain by it.
  virtual bool overlaps() const = 0;

  // Lets the others see what is not in the bucket.
  virtual void show(size_t /*bucket*/, const Subtrees& /*subtrees*/) {}
  // What this worker's word is written into.
  virtual torch::Tensor word() = 0;
  // Those of all, by rank.
  virtual std::vector<torch::Tensor> words(int64_t step) = 0;
  // The sum, divided by `divisor` (0: by nothing), is in the bucket of every worker, or, where it is
  // scattered, in its own part.
  virtual void add(size_t bucket, const Subtrees& subtrees, double divisor, int64_t step) = 0;
  // What was shown may be overwritten.
  virtual void end(int64_t /*step*/) {}

  // Every worker's own part of the buckets goes to all; `vectors` are as long as those of the buckets.
  virtual void spread(const std::vector<torch::Tensor>& vectors, int64_t step) = 0;
};

// The fixed tree over the lanes, in memory that all workers share: each adds its part of every bucket where
// the others have it and writes the sum back there.
std::unique_ptr<Summation> sum_in_memory(comm::Communicator& comm, const Buckets& buckets,
                                         const ControlWord& word, const SummationOptions& options);
// The same tree, over any communicator: everybody sends every other worker its part and gets the sum back.
std::unique_ptr<Summation> sum_by_exchange(comm::Communicator& comm, const Buckets& buckets,
                                           const ControlWord& word, const SummationOptions& options);
// The same tree, where each host's ranks share memory (comm::Hosts) and the vectors are in it: what is added
// inside the host crosses the network as one.
std::unique_ptr<Summation> sum_by_hosts(comm::Communicator& comm, const Buckets& buckets,
                                        const ControlWord& word, const SummationOptions& options);
// In whatever order the communicator's own all-reduce adds. Each worker holds one sum.
std::unique_ptr<Summation> sum_by_all_reduce(comm::Communicator& comm, const Buckets& buckets,
                                             const ControlWord& word);

}  // namespace tutti
