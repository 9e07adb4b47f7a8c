#pragma once

#include <bitset>

#include <ATen/core/Tensor.h>

#include "tutti/kernels/sums.h"

namespace tutti::kernels {

// The dimensions of a tensor that a reduction sums over: bit i stands for dimension i.
using Dimensions = std::bitset<64>;

// Returns the sums over `dimensions` as doubles, in a tensor whose first dimension is 1, or 2 if `terms`
// makes two sums, and whose others are those that remain. `x` is of type float or double; `shift` has an
// element for each sum; `second` has the shape and type of `x`.
//
// Dimensions beside each other are summed as one, in the order of sums.h; dimensions that are not beside each
// other one after the other, the last ones first. Dimensions of size 1 count as absent. So the order depends
// on sizes alone, and not on where the elements lie in memory.
at::Tensor sums_over(const at::Tensor& x, Dimensions dimensions, Terms terms, const at::Tensor& shift = {},
                     const at::Tensor& second = {});

// Returns the first element of each sum, as doubles: a shift for Terms::Moments that keeps the squares small.
at::Tensor first_elements(const at::Tensor& x, Dimensions dimensions);

// Joins `count` sums of each of some blocks, which lie one after the other, in the order of sums.h. The
// result replaces those of the first block.
void join_blocks(Terms terms, double* sums, int64_t blocks, int64_t count);

}  // namespace tutti::kernels
