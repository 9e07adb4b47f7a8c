#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include <torch/types.h>

namespace tutti::store {

// A tensor is addressed by its name, never by its place or by a rank.
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// Gives the elements of a tensor, in row-major order, to `take` piece by piece. A tensor on a GPU, or one
// that is not contiguous, is copied one piece at a time; the others are not copied.
void for_each_piece(const torch::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take);

}  // namespace tutti::store
