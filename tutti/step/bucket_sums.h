#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/base/config.h"
#include "tutti/comm/communicator.h"
#include "tutti/step/buckets.h"
#include "tutti/step/control_word.h"
#include "tutti/step/rounding.h"
#include "tutti/step/step_commit.h"

namespace tutti {

// How gradients are added over the workers.
struct ReducerOptions {
  bool fast = false;          // add in any order that the communicator chooses
  bool scatter = false;       // give each worker only its own slices of the sum of gradients
  RoundingOptions wire = {};  // ignored if it is fast, or if all workers share memory
  // For GradientMean: refuse to send gradients that are not finite.
  bool nan_guard = false;
};
// Returns the options that --reduce, --wire-precision, --error-feedback, --optimizer-state and --nan-guard
// set.
ReducerOptions reducer_options(const RunConfig& config);
// "reduce tree", "reduce tree, bfloat16 on the wire, scattered".
std::string to_string(const ReducerOptions& options);

// Returns the memory that the workers of this host share; nullptr if they share none, or if the vectors are
// on a device other than the CPU.
comm::SharedVectors* shared_by(comm::Communicator& comm, torch::Device device);

// Adds buckets over the workers. It knows where each worker has the sums of its own lanes, which are subtrees
// of the tree: the last is in the vectors of the buckets, and those before it are in memory where they wait
// for others. If workers share memory, the vectors must be in it. Not thread-safe.
class BucketSums {
 public:
  using Vectors = std::vector<torch::Tensor>;
  // Returns the divisor of a summed vector, given the sums of the numbers; 0: no division.
  using Divisor = std::function<double(const Bucket& bucket, const torch::Tensor& numbers)>;

  // The communicator, the buckets and `control` must outlive this. Every worker makes one, with buckets of
  // the same sizes.
  BucketSums(comm::Communicator& comm, const Buckets& buckets, const ControlWord& control, Divisor divisor,
             const ReducerOptions& options);

  // "tree", "tree, bfloat16 on the wire" or "fast".
  std::string name() const;
  // Returns true if gradients are rounded before they are sent.
  bool rounds() const { return rounded_.has_value(); }
  // Returns true if sending one bucket after the other can overlap communication with computation. If all
  // workers share memory, one sync point before and one after all sums take less time.
  bool overlap() const { return comm_.world() > 1 && (memory_ == nullptr || comm_.shared() == nullptr); }
  // Returns where the sums of this worker wait (TreeSum).
  const std::vector<Vectors>& waiting_room(size_t bucket) const { return waiting_rooms_[bucket]; }

  // Adds the buckets [begin, end) once the control word was read with `numbers`, the sums of the numbers.
  void add(size_t begin, size_t end, const torch::Tensor& numbers, int64_t step);
  // If there is one worker, which has added all lanes: divides the buckets.
  void divide(const torch::Tensor& numbers) const;
  // Distributes every worker's slices of the buckets to all. The vectors are as long as the buckets' vectors.
  // With `commit`, if not all workers have come to this, gets the worker's own slices back from another one.
  void spread(const Vectors& vectors, int64_t step, StepCommit* commit = nullptr);

  // Access to the residuals of rounding; nullopt without rounding or error feedback. May be called only
  // between two steps that succeeded.
  std::optional<Residuals> residuals() const;
  // Sets the residuals of this worker, saved with the same rank and number of workers.
  void set_residuals(const Residuals& residuals);

 private:
  using Places = std::vector<Vectors>;  // of a vector or a bucket: by subtree, then by rank on this host

  Places places_of(const torch::Tensor& vector, size_t subtrees) const;
  comm::SlicedSum sum_over(const Bucket& bucket, const Places& places, const ControlWord& control) const;
  void spread_in_memory(const Vectors& vectors, const comm::Options& options, StepCommit* commit);

  comm::Communicator& comm_;
  const Buckets& buckets_;
  const Divisor divisor_;
  const ReducerOptions options_;
  comm::SharedVectors* const memory_;                // of the workers of this host; null if there is none
  const int here_;                                   // the rank of this worker on its host
  std::vector<comm::SlicedSum> sums_;                // by bucket
  std::vector<std::vector<Vectors>> waiting_rooms_;  // by bucket
  std::optional<RoundedSums> rounded_;               // empty if nothing is rounded
};

}  // namespace tutti
