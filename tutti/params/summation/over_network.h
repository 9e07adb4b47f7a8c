#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "tutti/params/summation/summation.h"

namespace tutti {

// Functions shared by the summations whose ranks do not all share memory.

// Returns the word of every rank.
std::vector<torch::Tensor> gather_words(comm::Communicator& comm, const torch::Tensor& word, int64_t step);

// Returns the part of one bucket that each rank owns, as views of `vector`.
std::vector<torch::Tensor> parts_of(const Bucket& bucket, const torch::Tensor& vector, int world);

// Implements Summation::spread() with an all-gather.
void spread_over_network(comm::Communicator& comm, const Buckets& buckets,
                         const std::vector<torch::Tensor>& vectors, int64_t step);

}  // namespace tutti
