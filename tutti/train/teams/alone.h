#pragma once

#include <memory>

#include "tutti/cluster/context.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/timeline_file.h"

// What a task has that does not talk to the others through a communicator.
namespace tutti {

std::unique_ptr<comm::Communicator> group_of_one();
// A timeline file of its own: the name of the flag is the chief's.
comm::TimelineFileOptions timeline_of_its_own(const Context& context);

}  // namespace tutti
