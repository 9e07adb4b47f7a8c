#pragma once

// The differences between the c10d of LibTorch 1.13 and of 2.x that matter here.

#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tutti/base/torch_compat.h"

#if TUTTI_TORCH_AT_LEAST(2, 0)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#endif

namespace tutti::compat {

// The base class of the Gloo and NCCL backends.
#if TUTTI_TORCH_AT_LEAST(2, 0)
using Backend = c10d::Backend;
#else
using Backend = c10d::ProcessGroup;
#endif

// Ends a group of operations and returns the work begun since startCoalescing().
inline std::vector<c10::intrusive_ptr<c10d::Work>> end_coalescing(Backend& backend) {
#if TUTTI_TORCH_AT_LEAST(2, 1)
  return {backend.endCoalescing()};
#else
  std::vector<c10::intrusive_ptr<c10d::Work>> all;
  backend.endCoalescing(all);
  return all;
#endif
}

}  // namespace tutti::compat
