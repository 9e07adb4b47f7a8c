#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/agreement.h"
#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/params/optimizer_options.h"
#include "tutti/params/parameters.h"

// At the start of a training, the workers make sure that all have the same plan and the same kernels; later,
// that all have the same weights.
namespace tutti {

// Returns the facts that have to be the same on every worker, one line each: version, the flags that all
// tasks share, optimiser, parameters and buffers.
std::vector<std::string> plan_of(const Context& context, const Parameters& parameters,
                                 const OptimizerOptions& optimizer);

// Compares every worker's plan with the plan of rank 0. If they differ, all workers throw the same
// InvalidArgument, with the first line that differs, as both workers have it, and the names of their tasks.
void require_same_plan(const Context& context, comm::Communicator& comm,
                       const std::vector<std::string>& plan);

// Compares the kernels of two tasks, as lines (Kernels::lines()). Returns "" if they are the same, else a
// text that names both tasks and their values.
std::string mix_of(const Agreement& one, const Agreement& other);
// The three functions below get the result of mix_of(), and do nothing if it is "". The first throws it as an
// InvalidArgument, the second logs it as a warning, once for the context, and the third logs it with
// --mixed-machines, else throws it.
void refuse_mix(const std::string& mix);
void warn_of_mix(const Context& context, const std::string& mix);
void refuse_or_warn_of_mix(const Context& context, const std::string& mix);
// Compares every worker's kernels with the kernels of rank 0. If they differ, all workers throw the same
// InvalidArgument; with --mixed-machines, rank 0 logs a warning.
void require_same_kernels(const Context& context, comm::Communicator& comm);

// Compares the hash of every worker's weights after this step. If they differ, all workers throw the same
// DataLoss, which names the tasks whose weights are not those of most. Does nothing with --mixed-machines,
// since kernels of different kinds may round updates differently.
void require_same_weights(const Context& context, comm::Communicator& comm, int64_t step,
                          const std::string& sha256);

// Gives the modules that work on all workers together (comm::UsesCommunicator) a communicator of all workers.
// It is separate from `comm`, which may be sending gradients in another thread while a module's backward pass
// communicates. Every worker has to call it, with the same model and lanes. Returns nullptr, and does
// nothing, if no module needs one or there is one worker. Throws InvalidArgument unless all workers have
// equally many lanes, because such modules have to be called equally often on every worker.
std::shared_ptr<comm::Communicator> give_group(const Parameters& parameters, comm::Communicator& comm,
                                               int64_t lanes);

}  // namespace tutti
