#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Gather a value from every rank and return all of them, by rank: a number, a one-dimensional tensor of any
// length, or a text. `what` is used in error messages.
std::vector<int64_t> gather_all(Communicator& comm, int64_t mine, const char* what);
std::vector<torch::Tensor> gather_all(Communicator& comm, const torch::Tensor& mine, const char* what);
std::vector<std::string> gather_all(Communicator& comm, const std::string& mine, const char* what);

// Convert a text to a tensor that can be sent, and back.
torch::Tensor bytes_of(const std::string& text);
std::string text_of(const torch::Tensor& bytes);

}  // namespace tutti::comm
