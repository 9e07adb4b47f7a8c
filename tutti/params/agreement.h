#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Returns the facts that have to be the same on every worker, one line each: version, the flags that all
// tasks share, optimiser, parameters and buffers.
std::vector<std::string> plan_of(const Context& context, const Parameters& parameters,
                                 const OptimizerOptions& optimizer);

// Compares every worker's plan with that of rank 0. If they differ, all workers throw the same
// InvalidArgument, with the first line that differs, as both workers have it, and the names of their tasks.
void require_same_plan(const Context& context, comm::Communicator& comm,
                       const std::vector<std::string>& plan);

// Compares two plans. Throws InvalidArgument that says where `who` differs from `first_name`.
void require_same_plan(const std::vector<std::string>& first, const std::vector<std::string>& theirs,
                       const std::string& who, const std::string& first_name = "the chief");

// Runs `body` on rank 0 alone, for work with its disk, while the other ranks wait for up to ten times
// --timeout. If `body` throws, the communicator is abandoned, so that the other ranks learn the reason.
void on_chief(const Context& context, comm::Communicator& comm, const comm::Options& options,
              const std::function<void()>& body);

// Logs a warning on the chief if some workers have no lane and so will only wait.
void warn_of_idle_workers(const Context& context, const comm::Communicator& comm, int64_t lanes);

// Logs a warning if this worker's kernels use another number of threads than the chief's.
void warn_of_other_threads(const Context& context, int of_chief);

// Logs a warning for each embedding made with sparse(true): its gradient is a dense vector here.
void warn_of_sparse_tables(const Context& context, const Parameters& parameters);

// Copies the parameters and buffers of rank `root` to all ranks.
void broadcast(comm::Communicator& comm, Parameters& parameters, int root);
// Returns the state of rank `root` on every rank. The states that other ranks pass in are ignored.
Optimizer::State broadcast(comm::Communicator& comm, const Optimizer::State& state, int root);

// Collects the parts of the optimiser's state that the workers hold. Returns the whole state at rank 0, and
// an empty state on all other ranks.
Optimizer::State gather_state(comm::Communicator& comm, const Parameters& parameters,
                              const Optimizer& optimizer);

}  // namespace tutti
