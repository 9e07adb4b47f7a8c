#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include <torch/types.h>

namespace tutti::store {

// A tensor is identified by its name, never by its position or by a rank.
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// Passes the elements of a tensor to `take` in row-major order, in pieces. A tensor that is on a GPU or not
// contiguous is copied one piece at a time; other tensors are not copied.
void for_each_piece(const torch::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take);

}  // namespace tutti::store
