#pragma once

#include <cstdint>
#include <memory>

#include "tutti/comm/communicator.h"
#include "tutti/params/parameters.h"

namespace tutti {

// Gives the modules that work on all workers together (comm::UsesCommunicator) a group of all workers. It is
// another than `comm`, over which gradients may be on their way in another thread while a module's backward
// needs its own. Every worker calls it, with the same model and lanes. nullptr, and nothing done, where no
// module wants one or there is one worker. InvalidArgument unless all workers have equally many lanes: such
// modules have to be called equally often everywhere.
std::shared_ptr<comm::Communicator> give_group(const Parameters& parameters, comm::Communicator& comm,
                                               int64_t lanes);

}  // namespace tutti
