#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Connects the workers of this job over the backend named by --comm. `auto` means "shm+tcp": shared memory
// within a host and TCP between hosts. Only one of the two is used if the other has nothing to do, and
// only TCP if the ranks of some host are not contiguous. If each worker has a GPU of its own and the build
// has NCCL, `auto` and `nccl` also use NCCL, for tensors on the GPUs. Workers meet at the address of rank 0
// given by the launcher or the cluster, or through MPI if mpirun gives none. Every worker calls this once; a
// second call throws InvalidArgument. A program that needs several communicators, for example for two
// trainings, calls split() on the first one (see Group). A Timeout names the workers that did not connect.
std::shared_ptr<Communicator> connect(const Context& context);

}  // namespace tutti::comm
