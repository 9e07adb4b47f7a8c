#pragma once

#include <functional>
#include <optional>
#include <string>

#include <torch/types.h>

namespace bench {

// What a peer does with one tensor on every rank: add it up in place.
using AllReduce = std::function<void(torch::Tensor&)>;

// Open MPI's own, in a process that mpirun has started. Nothing where it was not built with MPI.
std::optional<AllReduce> mpi_all_reduce();

// That of the Gloo in LibTorch, from this address; the ranks meet in a file. Nothing where it was not built
// with Gloo.
std::optional<AllReduce> gloo_all_reduce(int rank, int world, const std::string& file,
                                         const std::string& address = "127.0.0.1");

}  // namespace bench
