#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/sliced_sum.h"
#include "tutti/step/buckets.h"

namespace tutti {

// How gradients are rounded before they are sent.
struct RoundingOptions {
  // The type to which gradients are rounded before they are sent; undefined: no rounding.
  torch::ScalarType type = torch::ScalarType::Undefined;
  // Adds the rounding error of a gradient to the next gradient of the same worker.
  bool error_feedback = true;
};

// The residuals of rounding on one worker, which are added to the next gradients: vectors as long as the
// vectors of the buckets, used for the buckets that hold gradients.
struct Residuals {
  using Vectors = std::vector<torch::Tensor>;
  std::vector<Vectors> subtrees = {};  // of what this worker sends
  Vectors sums = {};                   // of the sums that it hands out; zero outside of its slice
};

// Rounds a vector of gradients to fewer bits in each step, before it is sent, and adds the rounding error to
// the vector of the next step, so that nothing is lost over many steps (error feedback). Not thread-safe.
class Rounding {
 public:
  explicit Rounding(const RoundingOptions& options) : options_(options) {}

  // All calls get vectors of the same length. A value beyond the range of float16 becomes its largest number.
  torch::Tensor round(const torch::Tensor& exact);

  // The error that is added to the vector of the next step; undefined if there is none yet.
  const torch::Tensor& lost() const { return lost_; }
  void set_lost(torch::Tensor lost) { lost_ = std::move(lost); }

 private:
  const RoundingOptions options_;
  torch::Tensor lost_;
};

// Adds gradients that are rounded before they are sent, and whose sum is rounded before it is handed out. The
// worker that owns a slice of a bucket adds it in the exact type. Not thread-safe.
class RoundedSums {
 public:
  // All arguments must outlive this. No worker holds more than `most_subtrees` sums of a bucket.
  RoundedSums(comm::Communicator& comm, const Buckets& buckets, size_t most_subtrees,
              const RoundingOptions& options);

  // Returns false if the bucket is not rounded: it has no gradients, or their type is as small.
  bool has(size_t bucket) const { return roundings_[bucket].has_value(); }
  // Computes the sum of a bucket; the places of inputs and outputs are those of `sum`.
  void add(size_t bucket, const comm::SlicedSum& sum, int64_t step);

  // Returns a copy of the residuals, between two steps.
  Residuals residuals() const;
  // Sets the residuals of this worker, saved with the same rank and number of workers.
  void set_residuals(const Residuals& residuals);

 private:
  using Tensors = std::vector<torch::Tensor>;

  struct Roundings {
    std::vector<Rounding> subtrees;
    Rounding sum;
  };

  Tensors to_send(size_t bucket, const comm::SlicedSum& sum);
  Tensors get_slices(size_t bucket, const comm::SlicedSum& sum, int64_t step);
  torch::Tensor add_slices(const Bucket& bucket, const comm::SlicedSum& sum, const Tensors& received) const;
  void hand_out(size_t bucket, const comm::SlicedSum& sum, const torch::Tensor& slice, int64_t step);
  template <class Self, class Visit>
  static void for_each_rounding(Self& self, const Residuals& residuals, const Visit& visit);

  comm::Communicator& comm_;
  const Buckets& buckets_;
  const size_t most_subtrees_;
  const torch::TensorOptions on_wire_;               // of what is rounded, on the device where it is added
  std::vector<std::optional<Roundings>> roundings_;  // [bucket]
};

}  // namespace tutti
