#pragma once

#include <vector>

#include <torch/types.h>

#include "tutti/comm/reduce.h"

namespace tutti::comm {

// A sum, or another reduction, of any number of inputs per rank, along a given tree. All ranks pass the same,
// except for their own inputs.
struct Combination {
  Reduction reduction;
  Program program;                    // over the inputs of all ranks
  std::vector<int> holders;           // by input: the rank that has it, ascending; -1: the input is not used
  std::vector<Slice> slices;          // by rank: it computes this slice of the result
  std::vector<torch::Tensor> inputs;  // those of this rank, in order, each of `reduction.count` elements
  bool scatter = false;               // the output is only the slice of this rank, instead of the whole
};

}  // namespace tutti::comm
