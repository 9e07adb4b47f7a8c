#pragma once

#include <vector>

#include <torch/types.h>

// Checks of what a program passes to a Communicator. Each throws an InvalidArgument that names the call. They
// need no other rank, so that nothing has changed when they fail.
namespace tutti::comm {

// The tensor has to be defined and to have a dense layout.
void require_tensor(const char* call, const torch::Tensor& tensor);
// Like require_tensor(), and each of its elements needs memory of its own, since the call writes to them.
void require_writable(const char* call, const torch::Tensor& tensor);
void require_writable(const char* call, const std::vector<torch::Tensor>& tensors);

// `whole` has to have as many elements as `parts` tensors like `part`, of the same type.
void require_fit(const char* call, const torch::Tensor& whole, const torch::Tensor& part, int parts);
void require_one_each(const char* call, const std::vector<torch::Tensor>& tensors, int world);
void require_rank(const char* call, int rank, int world);

}  // namespace tutti::comm
