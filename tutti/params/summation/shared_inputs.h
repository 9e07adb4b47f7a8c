#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"
#include "tutti/params/summation/summation.h"

namespace tutti {

// The vectors of ranks that share memory, and the inputs of the sums over them.
class SharedInputs {
 public:
  // Serves the sources [first, end) of the word, which are all sources of the ranks in `shared`; `first_rank`
  // is the first of these ranks.
  SharedInputs(comm::SharedVectors& shared, const Buckets& buckets, const ControlWord& word, size_t first,
               size_t end, int first_rank);

  // Makes the subtrees that are not in the bucket visible to the other ranks: all but the last.
  void show(const Bucket& bucket, const Subtrees& subtrees) const;
  // Returns the address of element `element` of a vector in every source.
  std::vector<const std::byte*> inputs(size_t vector, int64_t element) const;
  // Returns a vector of every rank.
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

// Returns the address of an element of a vector.
std::byte* bytes_at(const torch::Tensor& vector, int64_t element);

}  // namespace tutti
