#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/reduce.h"
#include "tutti/params/parameters.h"

namespace tutti {

// A stretch of one vector that is summed over the workers as one.
struct Bucket {
  size_t vector;  // which
  int64_t begin;  // elements of it
  int64_t end;
  bool gradients;  // else buffers
};

// The vectors that are summed in a step, the gradients first, cut where one parameter ends and another begins
// into buckets of at least so many bytes, so that the first can be sent while the last are being computed.
// They are the same however many workers there are.
struct Buckets {
  std::vector<torch::Tensor> vectors;
  std::vector<Bucket> all;
  std::vector<size_t> of_parameter;  // for each of Parameters::trained()

  // The stretch itself.
  torch::Tensor stretch(const Bucket& bucket) const {
    return vectors[bucket.vector].narrow(0, bucket.begin, bucket.end - bucket.begin);
  }
};

inline constexpr int64_t kBucketBytes = int64_t{1} << 20;
Buckets buckets_of(const Parameters& parameters, int64_t bytes = kBucketBytes);

// A bucket is dealt out to the workers in cells of so many elements, counted from its beginning; the last may
// be shorter.
inline constexpr int64_t kCell = 1024;
// What one of `world` workers looks after, counted from the beginning of the vector.
comm::Slice part_of(const Bucket& bucket, int rank, int world);
// The same of all parameters: none where there are fewer cells than workers.
std::vector<Stretch> parts_of(const Parameters& parameters, int rank, int world);

}  // namespace tutti
