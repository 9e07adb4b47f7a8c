#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"
#include "tutti/rpc/arena.h"
#include "tutti/train/replica.h"

// Replacements for a task that does not use a communicator with the other tasks.
namespace tutti {

std::unique_ptr<comm::Communicator> group_of_one();
// Returns options for a separate timeline file. The chief's file has the name of the flag.
comm::TimelineFileOptions timeline_of_its_own(const Context& context);

// Places the replica's vectors, if they are on the CPU, where servers on the same host can read them.
ReplicaOptions in_arena(ReplicaOptions options, const std::shared_ptr<rpc::Arena>& arena);

}  // namespace tutti
