#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/summation/summation.h"

namespace tutti {

// The vectors of ranks that share memory, and all that is added to them there.
class SharedInputs {
 public:
  // Of the sources [first, end) of the word, which are all those of the ranks that `shared` has; `first_rank`
  // is the first of these.
  SharedInputs(comm::SharedVectors& shared, const Buckets& buckets, const ControlWord& word, size_t first,
               size_t end, int first_rank);

  // Lets the others see what is not in the bucket: all subtrees but the last.
  void show(const Bucket& bucket, const Subtrees& subtrees) const;
  // Of every source, what it has of a vector from this element on.
  std::vector<const std::byte*> inputs(size_t vector, int64_t element) const;
  // A vector as each rank has it.
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

// Where an element of a vector is.
std::byte* bytes_at(const torch::Tensor& vector, int64_t element);

}  // namespace tutti
