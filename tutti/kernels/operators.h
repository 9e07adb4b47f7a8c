#pragma once

#include <torch/library.h>

namespace tutti::kernels {

// Each registers the operators of one file, which take tensors, check and allocate as LibTorch does, and call
// the loops.
void register_products(torch::Library& library);

}  // namespace tutti::kernels
