#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

// The workers of this job, over what --comm says. `auto` is "shm+gloo": shared memory between those of one
// host, Gloo's TCP between hosts; one of the two alone where there is nothing for the other to do, and Gloo
// alone where the ranks of a host are not a run. Where each worker has a GPU of its own and the build NCCL,
// `auto` and `nccl` take NCCL besides, for what is on the GPUs. They meet at the address of rank 0 that the
// launcher or the cluster names, or through MPI where mpirun names none. Every worker calls it once: a
// second time is an InvalidArgument. Who needs several communicators, for two trainings in one program, say,
// takes split(0) of the one. A worker that does not come is named in the Timeout.
std::shared_ptr<Communicator> connect(const Context& context);

}  // namespace tutti::comm
