#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"

namespace tutti::comm {

// What every rank gives, by rank: a number, a one-dimensional tensor as long as each likes, or a text. `what`
// is for error messages.
std::vector<int64_t> gather_all(Communicator& comm, int64_t mine, const char* what);
std::vector<torch::Tensor> gather_all(Communicator& comm, const torch::Tensor& mine, const char* what);
std::vector<std::string> gather_all(Communicator& comm, const std::string& mine, const char* what);

// A text as a tensor that can be sent, and back.
torch::Tensor bytes_of(const std::string& text);
std::string text_of(const torch::Tensor& bytes);

}  // namespace tutti::comm
