#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

// The workers of this job, over what --comm says or, by itself, over shared memory where all are on one host
// and Gloo's TCP where they are not. They meet at the address of rank 0 that the launcher or the cluster
// names, or through MPI where mpirun names none. Every worker calls it once. A worker that does not come is
// named in the Timeout.
std::shared_ptr<Communicator> connect(const Context& context);

}  // namespace tutti::comm
