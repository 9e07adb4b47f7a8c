#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "tutti/base/json.h"

namespace tutti::store {

// A tensor is identified by its name, never by its position or by a rank.
struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;
using TensorsByName = std::map<std::string, torch::Tensor>;
TensorsByName by_name(const NamedTensors& tensors);

// The state of one part of a run after a step: tensors and other values.
struct Snapshot {
  NamedTensors tensors = {};
  Json values = Json::object();
  bool empty() const { return tensors.empty() && values.empty(); }
};

// Tensors and snapshots travel between tasks as an outline in JSON, with names, types, shapes and strides,
// and the elements of each tensor, which follow in the order of memory.

// Returns the tensors with the memory that is sent: on the CPU and without gaps. The strides of dense tensors
// are kept, so that kernels run alike on the copy. Undefined tensors stay undefined: they have an outline,
// but no elements. Throws InvalidArgument for a sparse tensor.
NamedTensors dense(NamedTensors tensors);
// Returns the elements of a dense tensor as a vector in the order of memory, without a copy.
torch::Tensor elements_of(const torch::Tensor& dense);

Json outline_of(const NamedTensors& dense);
Json outline_of(const Snapshot& dense);
// Return tensors and snapshots as described by an outline, with uninitialised memory. Throw InvalidArgument
// if the outline is invalid.
NamedTensor empty_tensor(const Json& outline);
NamedTensors empty_tensors(const Json& outlines);
Snapshot empty_snapshot(const Json& outline);
// Returns how many bytes of elements follow an outline, or a list of outlines, without allocating any.
int64_t bytes_in(const Json& outlines);

}  // namespace tutti::store
