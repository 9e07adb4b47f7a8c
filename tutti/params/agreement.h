#pragma once

#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti {

// What has to be the same on every worker for their steps to fit: version, optimiser, parameters and buffers,
// a line each.
std::vector<std::string> plan_of(const Parameters& parameters, const OptimizerOptions& optimizer);

// Compares every worker's plan with that of rank 0. The first line that differs, and who has it, is the
// InvalidArgument that all of them throw.
void require_same_plan(comm::Communicator& comm, const std::vector<std::string>& plan);

// Values and buffers as `root` has them.
void broadcast(comm::Communicator& comm, Parameters& parameters, int root);
// What `root` has; what the others give does not count.
Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root);

// The whole state at rank 0, and nothing elsewhere, where each worker's optimiser has its own part of the
// parameters.
Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer);

// One-dimensional tensors of one type, as long as each worker likes, by rank.
std::vector<torch::Tensor> gather_all(comm::Communicator& comm, const torch::Tensor& mine, const char* what);

}  // namespace tutti
