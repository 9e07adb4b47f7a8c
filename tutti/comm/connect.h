#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

// Connects the workers of this job as connect_ranks() does (transport/connect.h). If each worker has a GPU of
// its own and the build has NCCL, `--comm auto` and `nccl` also use NCCL, for tensors on the GPUs. Every
// worker calls this once; a second call throws InvalidArgument. A program that needs several communicators,
// for example for two trainings, calls split() on the first one (see Group).
std::shared_ptr<Communicator> connect(const Context& context);

}  // namespace tutti::comm
