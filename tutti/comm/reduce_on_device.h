#pragma once

#include <span>

#include <torch/types.h>

#include "tutti/comm/reduce.h"

namespace tutti::comm {

// As reduce(), with LibTorch's operators, on the device where the inputs are: the same bits. Those that the
// program leaves out may be undefined.
torch::Tensor reduce_on_device(std::span<const torch::Tensor> inputs, const Reduction& reduction,
                               const Program& program);

// In place, with the same bits on every device.
void divide(const torch::Tensor& values, double divisor);

}  // namespace tutti::comm
