#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
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

// One worker's plan and the chief's. InvalidArgument says where `who` differs.
void require_same_plan(const std::vector<std::string>& chiefs, const std::vector<std::string>& theirs,
                       const std::string& who);

// What rank 0 alone does, with its disk, while the others wait: ten times as long as for one another. If it
// cannot, they hear why.
void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body);

// Says so on the chief if there are workers that will only wait, since they have no lane.
void warn_of_idle_workers(const Context& context, const comm::Communicator& comm, int64_t lanes);

// Values and buffers as `root` has them.
void broadcast(comm::Communicator& comm, Parameters& parameters, int root);
// What `root` has; what the others give does not count.
Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root);

// The whole state at rank 0, and nothing elsewhere, where each worker's optimiser has its own part of the
// parameters.
Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer);

}  // namespace tutti
