#pragma once

#include <functional>
#include <optional>
#include <string>

#include <torch/types.h>

namespace bench {

// A peer's all-reduce: sums one tensor over all ranks in place.
using AllReduce = std::function<void(torch::Tensor&)>;

// Returns Open MPI's own all-reduce, for a process that mpirun has started; nullopt if not built with MPI.
std::optional<AllReduce> mpi_all_reduce();

// Returns the all-reduce of the Gloo in LibTorch, bound to this address; the ranks meet in a file. nullopt if
// not built with Gloo.
std::optional<AllReduce> gloo_all_reduce(int rank, int world, const std::string& file,
                                         const std::string& address = "127.0.0.1");

}  // namespace bench
