#pragma once

#include <cstdint>
#include <memory>

#include "tutti/comm/communicator.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Gives the modules that work on all workers together (comm::UsesCommunicator) a communicator of all workers.
// It is separate from `comm`, which may be sending gradients in another thread while a module's backward pass
// communicates. Every worker has to call it, with the same model and lanes. Returns nullptr, and does
// nothing, if no module needs one or there is one worker. Throws InvalidArgument unless all workers have
// equally many lanes, because such modules have to be called equally often on every worker.
std::shared_ptr<comm::Communicator> give_group(const Parameters& parameters, comm::Communicator& comm,
                                               int64_t lanes);

}  // namespace tutti
