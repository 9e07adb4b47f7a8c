#pragma once

#include <string>

#include <torch/types.h>

#include "tutti/params/parameters.h"

namespace tutti {

// Returns the hashes of what a lane has computed, before it is added to other lanes: 16 bytes (XXH3) for the
// gradient of each trained parameter, then for each buffer, and for the numbers of the lane. Called when the
// lane has been collected (LaneVectors::collect()). A lane has the same hashes wherever it is computed.
std::string hashes_of_lane(const Parameters& parameters, const torch::Tensor& numbers);

// Returns the hash of numbers, in which all that are not a number count as the same.
std::string hash_of_numbers(const torch::Tensor& numbers);

// Returns what the first hash belongs to in which two lanes differ, such as "the gradient of conv1.weight".
// Hashes after those of hashes_of_lane() belong to rows of sharded tables.
std::string first_difference(const Parameters& parameters, const std::string& one, const std::string& other);

}  // namespace tutti
