#pragma once

#include <vector>

#include <torch/types.h>

#include "tutti/comm/reduce.h"

namespace tutti::comm {

// A sum, or another reduction, of the values of any number of sources. Every rank computes a slice of it. All
// ranks pass the same, except for their tensors, which are plain memory on one device.
struct SlicedSum {
  Reduction reduction;     // `count` is the number of elements of each input
  const Sources* sources;  // must outlive the operation
  // By source: where this rank can read its values; undefined where it cannot. A rank can always read those
  // of its own sources.
  std::vector<torch::Tensor> inputs;
  // Receive the result. The first belongs to this rank; it may be one of the inputs.
  std::vector<torch::Tensor> outputs;
  // By rank, in their order and without gaps: each rank receives only this slice of the result, in an output
  // that is as long. Empty: all ranks receive the whole result.
  std::vector<Slice> slices = {};
  // The ranks of a host read each other's inputs, and write to each other's outputs: all are in
  // SharedVectors, `inputs` has an entry for each source of the host, and `outputs` one for each rank of it
  // (unless slices are given). After the inputs were written, the ranks of a host have to meet before they
  // call this.
  bool shared = false;

  bool scatters() const { return !slices.empty(); }
  // Returns the slice that each rank computes.
  std::vector<Slice> slices_of(int world) const {
    return scatters() ? slices : even_slices(reduction.count, world);
  }
  // Returns true if it is an all-reduce of one value per rank.
  bool is_all_reduce(int world) const {
    return !scatters() && sources->one_by_rank && sources->leaves == world;
  }
};

}  // namespace tutti::comm
