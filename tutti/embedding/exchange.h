#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <torch/types.h>

#include "tutti/comm/communicator.h"

// Lists that every worker sends to every other one.
namespace tutti::embedding {

template <class Number>
using Lists = std::vector<std::vector<Number>>;  // [worker]

// Lists on their way. They must stay where they are until wait() returns.
struct ListsUnderWay {
  Lists<int64_t> sent = {};
  Lists<int64_t> received = {};
  comm::Work work = {};
};

// Sends list i to worker i, and receives the lists that the workers send to this one. Returns when their
// lengths have been exchanged; with Run::Behind the rest may still be under way.
void exchange(comm::Communicator& comm, ListsUnderWay& lists, const comm::Options& options);
// Sends vector i to worker i, and returns the vectors that the workers have sent to this one, whose lengths
// it knows.
std::vector<torch::Tensor> exchange(comm::Communicator& comm, const std::vector<torch::Tensor>& vectors,
                                    std::span<const int64_t> lengths, const comm::Options& options);

}  // namespace tutti::embedding
