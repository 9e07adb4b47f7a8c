#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/summation/summation.h"

namespace tutti {

// What summations have in common whose ranks do not all share memory.

// The word of every rank.
std::vector<torch::Tensor> gather_words(comm::Communicator& comm, const torch::Tensor& word, int64_t step);

// What each rank looks after, of one bucket of a vector.
std::vector<torch::Tensor> parts_of(const Bucket& bucket, const torch::Tensor& vector, int world);

// Summation::spread() by sending to everybody.
void spread_over_network(comm::Communicator& comm, const Buckets& buckets,
                         const std::vector<torch::Tensor>& vectors, int64_t step);

}  // namespace tutti
