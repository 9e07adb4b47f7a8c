#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/comm/sliced_sum.h"
#include "tutti/params/parameters.h"

namespace tutti {

// A part of one of the vectors below that is summed over the workers as a unit.
struct Bucket {
  size_t vector;  // index in Buckets::vectors
  int64_t begin;  // the range of elements in the vector
  int64_t end;
  bool gradients;  // false: the bucket holds buffers

  comm::ElementRange range() const { return {begin, end}; }
};

// Returns these elements of a vector, as a view.
inline torch::Tensor elements_of(const torch::Tensor& vector, const comm::ElementRange& range) {
  return vector.narrow(0, range.begin, range.size());
}

// The vectors that are summed in a step, gradients first, cut at parameter boundaries into buckets of at
// least a given number of bytes, so that the first buckets can be sent while the last are still being
// computed. The buckets do not depend on the number of workers.
struct Buckets {
  std::vector<torch::Tensor> vectors;
  std::vector<Bucket> all;
  std::vector<size_t> of_parameter;  // [index in Parameters::trained()]

  // Returns the elements of the bucket.
  torch::Tensor elements(const Bucket& bucket) const {
    return elements_of(vectors[bucket.vector], bucket.range());
  }
};

inline constexpr int64_t kBucketBytes = int64_t{1} << 20;
Buckets buckets_of(const Parameters& parameters, int64_t bytes = kBucketBytes);

// The unit, in elements, in which a bucket is divided among the workers. Units are counted from the beginning
// of the bucket; the last one may be shorter.
inline constexpr int64_t kSliceUnit = 1024;
// Returns the slice of the bucket that worker `rank` of `world` owns, as a range of the bucket's vector.
comm::ElementRange slice_of(const Bucket& bucket, int rank, int world);
// Returns what the worker owns of all parameters: a section for each bucket of which it owns a slice, or,
// with one worker, the blocks. It owns no slice of some buckets with fewer units than there are workers.
std::vector<Section> sections_of(const Parameters& parameters, int rank, int world);

// Returns false if an element is NaN or infinite.
bool is_finite(const torch::Tensor& vector);

// Returns the norm of all gradients together.
double norm_of(const Buckets& buckets, double other_squares = 0);
// Returns the factor that limits the norm of gradients to `largest`; 1 if it is within the limit already.
double clip_factor(double norm, double largest);

// Scales the gradients so that the norm of all of them together is at most `largest`; returns the norm
// before. In clip_norm() each worker holds all gradients and nothing is sent. In clip_norm_scattered() each
// worker holds and scales its own slices. Both give the same bits.
double clip_norm(const Buckets& buckets, double largest, double other_squares = 0);
double clip_norm_scattered(comm::Communicator& comm, const Buckets& buckets, double largest, int64_t step,
                           double other_squares = 0);

}  // namespace tutti
