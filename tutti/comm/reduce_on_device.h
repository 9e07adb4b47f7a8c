#pragma once

#include <span>

#include <torch/types.h>

#include "tutti/comm/sliced_sum.h"

namespace tutti::comm {

// Like reduce(), with LibTorch's operators on the device of the inputs; gives the same bits. Inputs that the
// program does not use may be undefined.
torch::Tensor reduce_on_device(std::span<const torch::Tensor> inputs, const Reduction& reduction,
                               const Program& program);

// Writes the result of either of them, which depends on the device, to `output`.
void reduce_tensors(std::span<const torch::Tensor> inputs, const torch::Tensor& output,
                    const Reduction& reduction, const Program& program);

// Divides in place, with the same bits on every device.
void divide(const torch::Tensor& values, double divisor);

}  // namespace tutti::comm
