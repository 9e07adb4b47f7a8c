#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/comm/communicator.h"

// Lists that every worker sends to every other one.
namespace tutti::embedding {

template <class Number>
using Lists = std::vector<std::vector<Number>>;  // [worker]

// Sends list i to worker i, and returns the lists that the workers have sent to this one.
Lists<int64_t> exchange(comm::Communicator& comm, const Lists<int64_t>& lists, const comm::Options& options);
// Like above, for lists whose lengths the receiver knows.
Lists<float> exchange(comm::Communicator& comm, const Lists<float>& lists, std::span<const int64_t> lengths,
                      const comm::Options& options);

}  // namespace tutti::embedding
