#pragma once

#include <string>

#include "tutti/store/checkpoint.h"
#include "tutti/train/replica.h"

namespace tutti {

// Everything of a replica that a checkpoint holds, by name: parameters, frozen ones and buffers, and of the
// optimiser "exp_avg/conv1.weight". The tensors are the replica's own: write them before the next step.
store::Checkpoint snapshot(const Replica& replica);

// The other way round. Where the checkpoint is of another model or optimiser, an InvalidArgument lists what
// differs, by name and shape, and what to do; nothing is changed then.
void restore(Replica& replica, const store::Checkpoint& checkpoint, const std::string& where);

}  // namespace tutti
